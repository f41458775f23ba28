"""NVIDIA, AMD and AWS devices: peaks, chip, links and node of each in one row, with their sources.

From Ampere on, data sheets print tensor-core rates with sparsity; the table has half of them. Link rates are for one
direction, half of the printed totals. Cores times boost clock times lanes equals the vendor's float32 rate; tests check
the rows for that. A source that ends in ``UNSEEN`` was entered from memory and could not be verified; the other sources
were verified in the document itself or in a page that quotes its table.

AMD's ``float32`` is the matrix rate. MI250 and MI250X appear as two devices to a program, so their values are halved.
Verified: Infinity Fabric of CDNA 2 (ROCm documentation) and CDNA 3; 16-bit matrix rates of MI355X and MI350X (2.5 and
2.3 PFLOP/s) and 8 TB/s; MI300X with 1.3 PFLOP/s and 5.3 TB/s; 1.6 TB/s per GCD. Rates of other dtypes follow from those
by the vendor's ratios; MI300A and MI210 are from memory.
"""

from __future__ import annotations

from functools import partial

from perfscope.analyzers.devices.device import GIGA, Device, Node, UsualNetwork, peaks

_MIB = 1 << 20
_GIB = 1 << 30
UNSEEN = " (not looked up)"
_XLA = "what the driver reports of it, as XLA's device specification ({}) has it"
_NEURON = "AWS Neuron documentation"
_ROCM = "ROCm documentation, GPU hardware specifications"
_GA100 = "NVIDIA A100 Tensor Core GPU architecture white paper, table 4"
_V100_SOURCE = "NVIDIA V100 data sheet (2020)" + UNSEEN
_A100_SOURCE = "NVIDIA A100 Tensor Core GPU data sheet (2021)"
_H100_SOURCE = "NVIDIA H100 Tensor Core GPU architecture white paper v1.04, table 2"
_H800_SOURCE = "H100's, with NVLink cut to 400 GB/s in both directions, as the trade press reports of H800"
_SHEET = "AMD Instinct {} data sheet"

_HGX = "NVIDIA HGX and DGX {}: 8 GPUs, NVSwitch"
_SWITCH_8_A100 = Node(joined="switch", devices=8, host_devices=8, ports=12, source=_HGX.format("A100"))
_SWITCH_8_H100 = Node(joined="switch", devices=8, host_devices=8, ports=18, source=_HGX.format("H100, H200"),
                      reduces=True)  # fmt: skip
_SWITCH_8_B200 = Node(joined="switch", devices=8, host_devices=8, ports=18, source=_HGX.format("B200"), reduces=True)
_SWITCH_8_H800 = Node(joined="switch", devices=8, host_devices=8, ports=8, source="HGX of 8 with 8 of 18 NVLinks",
                      reduces=True)  # fmt: skip
_SWITCH_8_B300 = Node(joined="switch", devices=8, host_devices=8, ports=18, source=_HGX.format("B300"), reduces=True)
_NVL72 = Node(joined="switch", devices=72, host_devices=4, ports=18, reduces=True,
              source="NVIDIA GB200 and GB300 NVL72: 72 GPUs in one NVLink domain, 18 trays of 4")  # fmt: skip
_BRIDGE = Node(joined="mesh", devices=4, host_devices=4, ports=3, source="NVIDIA H200 NVL: bridges of 2 or 4")
_BRIDGE_2 = Node(joined="mesh", devices=2, host_devices=2, ports=1, source="NVIDIA H100 NVL: a bridged pair")
_V100 = Node(joined="mesh", devices=8, host_devices=8, ports=6, source="NVIDIA DGX-1 V100: hybrid cube mesh of 8")
_FABRIC_8 = Node(joined="mesh", devices=8, host_devices=8, ports=7,
                 source="AMD Instinct platform: 8 OAM, a link from each to each")  # fmt: skip
_FABRIC_4 = Node(joined="mesh", devices=4, host_devices=4, ports=6,
                 source="AMD Instinct MI300A: 4 of a node, two links from each to each")  # fmt: skip

_DGX_A100 = UsualNetwork(link="InfiniBand HDR", cards=8, source="NVIDIA DGX A100: 8 cards of 200 Gb/s")
_DGX_H100 = UsualNetwork(link="InfiniBand NDR", cards=8, source="NVIDIA DGX H100 and H200: 8 cards of 400 Gb/s")
_DGX_B200 = UsualNetwork(link="InfiniBand NDR", cards=8, source="NVIDIA DGX B200: 8 cards of 400 Gb/s")
_DGX_B300 = UsualNetwork(link="InfiniBand XDR", cards=8, source="NVIDIA DGX B300: 8 cards of 800 Gb/s")
_GB300 = UsualNetwork(link="InfiniBand XDR", cards=72, source="NVIDIA GB300 NVL72: a card of 800 Gb/s a GPU")
_GB200 = UsualNetwork(link="InfiniBand NDR", cards=72, source="NVIDIA DGX GB200: a card of 400 Gb/s a GPU")
_OAM = UsualNetwork(link="RoCE 400GbE", cards=8, source="AMD Instinct reference cluster: a card of 400 Gb/s a GPU")

_A100 = peaks(float32=19.5, tf32=156, bfloat16=312, float16=312)
_H100_SXM = peaks(float32=66.9, tf32=494.7, bfloat16=989.4, float16=989.4, fp8=1978.9)
_H100_NVL = peaks(float32=60, tf32=417.5, bfloat16=835.5, float16=835.5, fp8=1671)
_MI300X = peaks(float32=163.4, tf32=653.7, bfloat16=1307.4, float16=1307.4, fp8=2614.9)


def _gpu(
    vendor: str,
    name: str,
    match: str,
    flops: dict[str, int],
    gigabytes_per_second: float,
    source: str,
    *,
    chip: tuple[int | None, int, float, float, str],
    architecture: str,
    link: tuple[str, float] | None = None,
    node: Node | None = None,
    network: UsualNetwork | None = None,
) -> Device:
    """Return a device of the table.

    ``chip``: bytes of memory available to programs (None: products differ), cores (SMs or compute units), boost clock
    in GHz, MiB of the shared cache, and their source. ``link``: name and GB/s in one direction.
    """
    memory_bytes, cores, gigahertz, l2_mebibytes, chip_source = chip
    return Device(
        name=name,
        vendor=vendor,
        match=match,
        peak_flops=flops,
        memory_bandwidth=round(gigabytes_per_second * GIGA),
        source=source,
        link=None if link is None else link[0],
        link_bandwidth=None if link is None else round(link[1] * GIGA),
        memory_bytes=memory_bytes,
        cores=cores,
        clock_hz=round(gigahertz * GIGA),
        l2_bytes=round(l2_mebibytes * _MIB),
        architecture=architecture,
        chip_source=chip_source,
        node=node,
        network=network,
    )


_nvidia = partial(_gpu, "NVIDIA")
_amd = partial(_gpu, "AMD")


NVIDIA: tuple[Device, ...] = (
    _nvidia("GB300", r"\bGB300\b", peaks(float32=80, tf32=1250, bfloat16=2500, float16=2500, fp8=5000), 8000,
        "NVIDIA GB300 NVL72 product page, a 72nd: 180 PFLOP/s of FP16 dense, 360 of FP8 dense, 576 TB/s",
        chip=(297_021_079_552, 152, 2.07, 129.25, _XLA.format("gb300")), architecture="sm_103a", link=("NVLink 5", 900),
        node=_NVL72, network=_GB300),
    _nvidia("B300", r"\bB300\b", peaks(float32=75, tf32=1125, bfloat16=2250, float16=2250, fp8=4500), 7936,
        "NVIDIA HGX B300 specifications, an eighth: 36 PFLOP/s of FP16 and 72 of FP8 with sparsity; bandwidth: "
        + _XLA.format("b300") + " (data sheet: up to 8 TB/s)",
        chip=(275_040 * _MIB, 148, 1.965, 129.25,
              "memory: nvidia-smi of a B300 SXM6 AC; clock and cache: " + _XLA.format("b300")
              + "; SMs: from the float32 rate"),
        architecture="sm_103a", link=("NVLink 5", 900), node=_SWITCH_8_B300, network=_DGX_B300),
    _nvidia("GB200", r"\bGB200\b", peaks(float32=80, tf32=1250, bfloat16=2500, float16=2500, fp8=5000), 8000,
        "NVIDIA Blackwell data sheet, GB200 NVL72, per GPU: 5 PFLOP/s of FP16 with sparsity, 8 TB/s",
        chip=(197_897_748_480, 152, 2.062, 129.25, _XLA.format("gb200")), architecture="sm_100a",
        link=("NVLink 5", 900), node=_NVL72, network=_GB200),
    _nvidia("B200", r"\bB200\b", peaks(float32=75, tf32=1125, bfloat16=2250, float16=2250, fp8=4500), 7700,
        "NVIDIA Blackwell data sheet, HGX B200, per GPU: 4.5 PFLOP/s of FP16 with sparsity, 7.7 TB/s (DGX: 8)",
        chip=(191_514_411_008, 148, 1.965, 126.5, _XLA.format("b200")), architecture="sm_100a", link=("NVLink 5", 900),
        node=_SWITCH_8_B200, network=_DGX_B200),
    _nvidia("H200 NVL", r"\bH200 NVL\b", _H100_NVL, 4800, "NVIDIA H200 Tensor Core GPU data sheet (2024)" + UNSEEN,
        chip=(141 * GIGA, 132, 1.785, 50, "NVIDIA H200 NVL product brief" + UNSEEN), architecture="sm_90a",
        link=("NVLink 4", 450), node=_BRIDGE),
    _nvidia("H200", r"\bH200\b", _H100_SXM, 4800, "NVIDIA H200 Tensor Core GPU data sheet (2024)",
        chip=(151_397_597_184, 132, 1.98, 50, _XLA.format("h200")), architecture="sm_90a", link=("NVLink 4", 450),
        node=_SWITCH_8_H100, network=_DGX_H100),
    _nvidia("H100 NVL", r"\bH100 NVL\b", _H100_NVL, 3900, "NVIDIA H100 Tensor Core GPU data sheet (2023)" + UNSEEN,
        chip=(94 * GIGA, 132, 1.785, 50, "NVIDIA H100 NVL product brief" + UNSEEN), architecture="sm_90a",
        link=("NVLink 4", 300), node=_BRIDGE_2),
    _nvidia("H100 PCIe", r"\bH100 PCIe\b", peaks(float32=51.2, tf32=378, bfloat16=756, float16=756, fp8=1513), 2039,
        _H100_SOURCE + UNSEEN, chip=(84_942_979_072, 114, 1.755, 50, _XLA.format("h100_pcie")), architecture="sm_90a"),
    _nvidia("H100 SXM", r"\bH100\b(?!.*PCIe)", _H100_SXM, 3352, _H100_SOURCE,
        chip=(84_942_979_072, 132, 1.98, 50, _XLA.format("h100_sxm")), architecture="sm_90a", link=("NVLink 4", 450),
        node=_SWITCH_8_H100, network=_DGX_H100),
    _nvidia("H800 PCIe", r"\bH800 PCIe\b", peaks(float32=51.2, tf32=378, bfloat16=756, float16=756, fp8=1513), 2039,
        _H800_SOURCE + UNSEEN, chip=(84_942_979_072, 114, 1.755, 50, "as H100 PCIe" + UNSEEN), architecture="sm_90a"),
    _nvidia("H800 SXM", r"\bH800\b(?!.*PCIe)", _H100_SXM, 3352, _H800_SOURCE,
        chip=(84_942_979_072, 132, 1.98, 50, "as H100 SXM" + UNSEEN), architecture="sm_90a", link=("NVLink 4", 200),
        node=_SWITCH_8_H800, network=_DGX_H100),
    _nvidia("H20", r"\bH20\b(?!-3e)", peaks(float32=44, tf32=74, bfloat16=148, float16=148, fp8=296, int8=296), 4000,
        "NVIDIA HGX H20 specifications, as the trade press printed them: 148 TFLOP/s of BF16 dense, 4.0 TB/s",
        chip=(97_285 * _MIB, 78, 1.98, 60, "properties that torch reports of it (SMs, memory); clock: as H100 SXM; "
              "cache: trade press"),
        architecture="sm_90a", link=("NVLink 4", 450), node=_SWITCH_8_H100, network=_DGX_H100),
    _nvidia("A100 SXM 80GB", r"\bA100-SXM\d?-80GB", _A100, 2039, _A100_SOURCE,
        chip=(85_100_068_864, 108, 1.41, 40, _XLA.format("a100_sxm_80")), architecture="sm_80", link=("NVLink 3", 300),
        node=_SWITCH_8_A100, network=_DGX_A100),
    _nvidia("A100 PCIe 80GB", r"\bA100 80GB PCIe", _A100, 1935, _A100_SOURCE,
        chip=(79_050_250_240, 108, 1.41, 40, _XLA.format("a100_pcie_80") + "; clock: " + _GA100), architecture="sm_80"),
    _nvidia("A100 40GB", r"\bA100-(SXM\d?-40GB|PCIE-40GB|PG509)", _A100, 1555,
        "NVIDIA A100 Tensor Core GPU architecture white paper, table 4",
        chip=(42_331_013_120, 108, 1.41, 40, _XLA.format("a100_sxm_40")), architecture="sm_80", network=_DGX_A100),
    _nvidia("A30", r"\bA30\b", peaks(float32=10.3, tf32=82, bfloat16=165, float16=165), 933,
        "NVIDIA A30 data sheet" + UNSEEN, chip=(24 * GIGA, 56, 1.44, 24, "NVIDIA A30 data sheet" + UNSEEN),
        architecture="sm_80"),
    _nvidia("A40", r"\bA40\b", peaks(float32=37.4, tf32=74.8, bfloat16=149.7, float16=149.7), 696,
        "NVIDIA A40 data sheet", chip=(48 * GIGA, 84, 1.74, 6, "NVIDIA A40 data sheet" + UNSEEN), architecture="sm_86"),
    _nvidia("A10", r"\bA10\b", peaks(float32=31.2, tf32=62.5, bfloat16=125, float16=125), 600,
        "NVIDIA A10 data sheet" + UNSEEN, chip=(24 * GIGA, 72, 1.695, 6, "NVIDIA A10 data sheet" + UNSEEN),
        architecture="sm_86"),
    _nvidia("A10G", r"\bA10G\b", peaks(float32=35, tf32=35, bfloat16=70, float16=70, int8=140), 600,
        "NVIDIA A10G data sheet (AWS G5)" + UNSEEN,
        chip=(22_587 * _MIB, 80, 1.71, 6, "properties that torch reports of it (SMs, memory, cache); clock: from the "
              "float32 rate"),
        architecture="sm_86"),
    _nvidia("L40S", r"\bL40S\b", peaks(float32=91.6, tf32=183, bfloat16=362, float16=362, fp8=733), 864,
        "NVIDIA L40S data sheet", chip=(48 * GIGA, 142, 2.52, 96, "NVIDIA L40S data sheet" + UNSEEN),
        architecture="sm_89"),
    _nvidia("L4", r"\bL4\b", peaks(float32=30.3, tf32=60, bfloat16=121, float16=121, fp8=242.5), 300,
        "NVIDIA L4 data sheet" + UNSEEN,
        chip=(24 * GIGA, 58, 2.04, 48, "NVIDIA L4 data sheet, Ada GPU architecture white paper" + UNSEEN),
        architecture="sm_89"),
    _nvidia("V100S PCIe", r"\bV100S\b", peaks(float32=16.4, float16=130), 1134, _V100_SOURCE,
        chip=(32 * GIGA, 80, 1.597, 6, "NVIDIA V100S data sheet" + UNSEEN), architecture="sm_70"),
    _nvidia("V100 PCIe", r"\bV100-PCIE", peaks(float32=14, float16=112), 900, _V100_SOURCE,
        chip=(None, 80, 1.38, 6, "NVIDIA V100 data sheet; sold with 16 and with 32 GB" + UNSEEN), architecture="sm_70"),
    _nvidia("V100 SXM2", r"\bV100-(SXM|DGXS)", peaks(float32=15.7, float16=125), 900, _V100_SOURCE,
        chip=(None, 80, 1.53, 6, _XLA.format("v100") + "; sold with 16 and with 32 GB"), architecture="sm_70",
        link=("NVLink 2", 150), node=_V100),
    _nvidia("T4", r"\bT4\b", peaks(float32=8.1, float16=65), 320, "NVIDIA T4 data sheet",
        chip=(16 * GIGA, 40, 1.59, 4, "NVIDIA T4 data sheet" + UNSEEN), architecture="sm_75"),
    _nvidia("RTX PRO 6000 Server", r"\bRTX PRO 6000 Blackwell Server\b",
        peaks(float32=120, tf32=240, bfloat16=480, float16=480, fp8=960), 1597,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet: 120 TFLOP/s of FP32, 1,597 GB/s; tensor cores: the "
        "workstation card's in the ratio of FP32" + UNSEEN,
        chip=(97_250 * _MIB, 188, 2.493, 128, "properties that torch reports of it (SMs, memory, cache); clock: from "
              "the float32 rate"),
        architecture="sm_120a"),
    _nvidia("RTX PRO 6000 Workstation", r"\bRTX PRO 6000 Blackwell\b(?!.*Max-Q)",
        peaks(float32=126, tf32=251.9, bfloat16=503.8, float16=503.8, fp8=1007.6), 1792,
        "NVIDIA RTX Blackwell PRO GPU architecture white paper, as hmc-tech.com quotes it (FP32 accumulate)",
        chip=(97_250 * _MIB, 188, 2.617, 128,
              "memory: as the Server Edition; SMs and cache: " + _XLA.format("rtx6000pro") + "; clock: hmc-tech.com"),
        architecture="sm_120a"),
    _nvidia("RTX 5090", r"\bRTX 5090\b(?! D| Laptop)",
        peaks(float32=104.8, tf32=104.8, bfloat16=209.5, float16=209.5, fp8=419, int8=838), 1792,
        "NVIDIA RTX Blackwell GPU architecture white paper (FP32 accumulate); int8: 3,352 TOP/s of FP4 with sparsity, "
        "a quarter" + UNSEEN,
        chip=(32 * _GIB, 170, 2.407, 96, "NVIDIA RTX Blackwell GPU architecture white paper, as reviews quote it"),
        architecture="sm_120a"),
    _nvidia("RTX 4090", r"\bRTX 4090\b", peaks(float32=82.6, tf32=82.6, bfloat16=165.2, float16=165.2, fp8=330.3), 1008,
        "NVIDIA Ada GPU architecture white paper v2.1, table 2 (FP32 accumulate)" + UNSEEN,
        chip=(24 * GIGA, 128, 2.52, 72, "NVIDIA Ada GPU architecture white paper" + UNSEEN), architecture="sm_89"),
    _nvidia("RTX 3090", r"\bRTX 3090$", peaks(float32=35.6, tf32=35.6, bfloat16=71, float16=71), 936,
        "NVIDIA Ampere GA102 GPU architecture white paper, table 3 (FP32 accumulate)" + UNSEEN,
        chip=(24 * GIGA, 82, 1.695, 6, "NVIDIA Ampere GA102 architecture white paper" + UNSEEN), architecture="sm_86"),
    _nvidia("RTX 2080 Ti", r"\bRTX 2080 Ti\b", peaks(float32=13.4, float16=53.8), 616,
        "NVIDIA Turing GPU architecture white paper, table 1 (reference clocks, FP32 accumulate)" + UNSEEN,
        chip=(11 * GIGA, 68, 1.545, 5.5, "NVIDIA Turing GPU architecture white paper" + UNSEEN), architecture="sm_75"),
)  # fmt: skip
"""Narrower names are listed before wider ones, because the first match counts. ``A100 40GB`` covers the SXM and the
PCIe card, so no link is stated. ``V100 SXM2`` also covers the DGX Station's card (``V100-DGXS``): the same chip, memory
and links, four per station. Optional bridges between two PCIe cards are not listed, except that of H100 NVL.
"""

AMD: tuple[Device, ...] = (
    _amd("MI355X", r"\bMI355X\b", peaks(float32=157.3, bfloat16=2516.6, float16=2516.6, fp8=5033.2), 8000,
        _SHEET.format("MI355X"), chip=(288 * _GIB, 256, 2.4, 32, _ROCM), architecture="gfx950",
        link=("Infinity Fabric", 537.6), node=_FABRIC_8, network=_OAM),
    _amd("MI350X", r"\bMI350X\b", peaks(float32=144.2, bfloat16=2306.9, float16=2306.9, fp8=4613.7), 8000,
        _SHEET.format("MI350X"), chip=(288 * _GIB, 256, 2.2, 32, _ROCM), architecture="gfx950",
        link=("Infinity Fabric", 537.6), node=_FABRIC_8, network=_OAM),
    _amd("MI325X", r"\bMI325X\b", _MI300X, 6000, _SHEET.format("MI325X"), chip=(256 * _GIB, 304, 2.1, 32, _ROCM),
        architecture="gfx942", link=("Infinity Fabric", 448), node=_FABRIC_8, network=_OAM),
    _amd("MI300X", r"\bMI300X\b", _MI300X, 5300, _SHEET.format("MI300X"), chip=(192 * _GIB, 304, 2.1, 32, _ROCM),
        architecture="gfx942", link=("Infinity Fabric", 448), node=_FABRIC_8, network=_OAM),
    _amd("MI300A", r"\bMI300A\b", peaks(float32=122.6, tf32=490.3, bfloat16=980.6, float16=980.6, fp8=1961.2), 5300,
        _SHEET.format("MI300A") + UNSEEN, chip=(128 * _GIB, 228, 2.1, 24, _ROCM), architecture="gfx942",
        link=("Infinity Fabric", 384), node=_FABRIC_4),
    _amd("MI250X (one GCD)", r"\bMI250X?\b", peaks(float32=47.85, bfloat16=191.5, float16=191.5), 1638.4,
        _SHEET.format("MI250X"), chip=(64 * _GIB, 110, 1.7, 8, _ROCM), architecture="gfx90a"),
    _amd("MI210", r"\bMI210\b", peaks(float32=45.3, bfloat16=181, float16=181), 1638.4, _SHEET.format("MI210") + UNSEEN,
        chip=(64 * _GIB, 104, 1.7, 8, _ROCM), architecture="gfx90a"),
)  # fmt: skip
"""The driver calls both MI250X and MI250 ``MI250X / MI250``; the peaks are those of MI250X. Links: over all links to
other devices of the node, seven of 76.8 GB/s (CDNA 4) or 64 (CDNA 3); data sheets print both directions of a link
(153.6, 128). MI300A has six of 64 in a node of four. Two GCDs of MI250X are joined by one, two or four links of 50,
depending on their position, so no rate is stated. MI300A shares its memory with the host.
"""

AWS: tuple[Device, ...] = (
    Device(
        name="Trainium2", vendor="AWS", match=r"\b(Trainium ?2|trn2)\b",
        peak_flops=peaks(float32=181, tf32=667, bfloat16=667, float16=667, fp8=1299), memory_bandwidth=2900 * GIGA,
        source=_NEURON + ", Trainium2 architecture", link="NeuronLink-v3", link_bandwidth=640 * GIGA,
        memory_bytes=96 * _GIB, cores=8, chip_source=_NEURON + "; no clock stated; no cache: SBUF is the program's",
        node=Node(joined="torus", devices=16, host_devices=16, ports=4, axes=2,
                  source=_NEURON + ": Trn2 instance of 16 chips; 1.28 TB/s a chip, taken as both directions"),
    ),
)  # fmt: skip
"""A chip of eight NeuronCores; programs see four or eight devices of it, by their logical core configuration."""
