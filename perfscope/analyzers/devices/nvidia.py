"""NVIDIA devices. Data sheets print tensor-core numbers with sparsity from Ampere on: halved here.

A source that ends in ``UNSEEN`` was entered from memory and could not be looked up again; the others were, in the
document itself or in a page that quotes its table.
"""

from __future__ import annotations

from perfscope.analyzers.devices.chips import NVIDIA_CHIPS, architecture_of
from perfscope.analyzers.devices.device import GIGA, Device, peaks
from perfscope.analyzers.devices.node import NETWORKS, NODES

UNSEEN = " (not looked up)"
_V100_SOURCE = "NVIDIA V100 data sheet (2020)" + UNSEEN

_A100 = peaks(float32=19.5, tf32=156, bfloat16=312, float16=312)
_H100_SXM = peaks(float32=66.9, tf32=494.7, bfloat16=989.4, float16=989.4, fp8=1978.9)
_H100_NVL = peaks(float32=60, tf32=417.5, bfloat16=835.5, float16=835.5, fp8=1671)
_A100_SOURCE = "NVIDIA A100 Tensor Core GPU data sheet (2021)"
_H100_SOURCE = "NVIDIA H100 Tensor Core GPU architecture white paper v1.04, table 2"


_NVLINK = {
    "GB200": (5, 900), "B200": (5, 900), "H200 NVL": (4, 450), "H200": (4, 450), "H100 NVL": (4, 300),
    "H100 SXM": (4, 450), "A100 SXM 80GB": (3, 300), "V100 SXM2": (2, 150),
}  # fmt: skip
"""Generation, and GB/s in one direction: half of the totals on the data sheets (1,800, 900, 600 and 300; H100 NVL
by its bridge: 600). Bridges between two PCIe cards that buyers may leave out are not listed. ``A100 40GB`` stands
for the SXM and the PCIe card: no link is stated."""


def _device(name: str, match: str, flops: dict[str, int], gigabytes_per_second: float, source: str) -> Device:
    generation, link = _NVLINK.get(name, (None, None))
    chip = NVIDIA_CHIPS[name]
    return Device(
        name=name,
        vendor="NVIDIA",
        match=match,
        peak_flops=flops,
        memory_bandwidth=round(gigabytes_per_second * GIGA),
        source=source,
        link=None if generation is None else f"NVLink {generation}",
        link_bandwidth=None if link is None else link * GIGA,
        memory_bytes=chip.memory_bytes,
        cores=chip.cores,
        clock_hz=chip.clock_hz,
        l2_bytes=chip.l2_bytes,
        architecture=architecture_of(name),
        chip_source=chip.source,
        node=NODES.get(name),
        network=NETWORKS.get(name),
    )


NVIDIA: tuple[Device, ...] = (
    _device("GB200", r"\bGB200\b", peaks(float32=80, tf32=1250, bfloat16=2500, float16=2500, fp8=5000), 8000,
            "NVIDIA Blackwell data sheet, GB200 NVL72, per GPU: 5 PFLOP/s of FP16 with sparsity, 8 TB/s"),
    _device("B200", r"\bB200\b", peaks(float32=75, tf32=1125, bfloat16=2250, float16=2250, fp8=4500), 7700,
            "NVIDIA Blackwell data sheet, HGX B200, per GPU: 4.5 PFLOP/s of FP16 with sparsity, 7.7 TB/s (DGX: 8)"),
    _device("H200 NVL", r"\bH200 NVL\b", _H100_NVL, 4800, "NVIDIA H200 Tensor Core GPU data sheet (2024)" + UNSEEN),
    _device("H200", r"\bH200\b", _H100_SXM, 4800, "NVIDIA H200 Tensor Core GPU data sheet (2024)"),
    _device("H100 NVL", r"\bH100 NVL\b", _H100_NVL, 3900, "NVIDIA H100 Tensor Core GPU data sheet (2023)" + UNSEEN),
    _device("H100 PCIe", r"\bH100 PCIe\b", peaks(float32=51.2, tf32=378, bfloat16=756, float16=756, fp8=1513), 2039,
            _H100_SOURCE + UNSEEN),
    _device("H100 SXM", r"\bH100\b(?!.*PCIe)", _H100_SXM, 3352, _H100_SOURCE),
    _device("A100 SXM 80GB", r"\bA100-SXM\d?-80GB", _A100, 2039, _A100_SOURCE),
    _device("A100 PCIe 80GB", r"\bA100 80GB PCIe", _A100, 1935, _A100_SOURCE),
    _device("A100 40GB", r"\bA100-(SXM\d?-40GB|PCIE-40GB|PG509)", _A100, 1555,
            "NVIDIA A100 Tensor Core GPU architecture white paper, table 4"),
    _device("A30", r"\bA30\b", peaks(float32=10.3, tf32=82, bfloat16=165, float16=165), 933,
            "NVIDIA A30 data sheet" + UNSEEN),
    _device("A40", r"\bA40\b", peaks(float32=37.4, tf32=74.8, bfloat16=149.7, float16=149.7), 696,
            "NVIDIA A40 data sheet"),
    _device("A10", r"\bA10\b", peaks(float32=31.2, tf32=62.5, bfloat16=125, float16=125), 600,
            "NVIDIA A10 data sheet" + UNSEEN),
    _device("L40S", r"\bL40S\b", peaks(float32=91.6, tf32=183, bfloat16=362, float16=362, fp8=733), 864,
            "NVIDIA L40S data sheet"),
    _device("L4", r"\bL4\b", peaks(float32=30.3, tf32=60, bfloat16=121, float16=121, fp8=242.5), 300,
            "NVIDIA L4 data sheet" + UNSEEN),
    _device("V100S PCIe", r"\bV100S\b", peaks(float32=16.4, float16=130), 1134, _V100_SOURCE),
    _device("V100 PCIe", r"\bV100-PCIE", peaks(float32=14, float16=112), 900, _V100_SOURCE),
    _device("V100 SXM2", r"\bV100-SXM", peaks(float32=15.7, float16=125), 900, _V100_SOURCE),
    _device("T4", r"\bT4\b", peaks(float32=8.1, float16=65), 320, "NVIDIA T4 data sheet"),
    _device("RTX 4090", r"\bRTX 4090\b", peaks(float32=82.6, tf32=82.6, bfloat16=165.2, float16=165.2, fp8=330.3), 1008,
            "NVIDIA Ada GPU architecture white paper v2.1, table 2 (FP32 accumulate)" + UNSEEN),
    _device("RTX 3090", r"\bRTX 3090$", peaks(float32=35.6, tf32=35.6, bfloat16=71, float16=71), 936,
            "NVIDIA Ampere GA102 GPU architecture white paper, table 3 (FP32 accumulate)" + UNSEEN),
    _device("RTX 2080 Ti", r"\bRTX 2080 Ti\b", peaks(float32=13.4, float16=53.8), 616,
            "NVIDIA Turing GPU architecture white paper, table 1 (reference clocks, FP32 accumulate)" + UNSEEN),
)  # fmt: skip
"""Narrower names stand before wider ones: the first match counts."""
