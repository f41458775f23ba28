"""Of each GPU: memory as programs find it, cores, boost clock and shared cache, each line with its source.

Cores times boost clock times lanes gives the float32 rate that the vendor prints: the tests hold the lines to that.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.devices.device import GIGA

_MIB = 1 << 20
_GIB = 1 << 30
UNSEEN = " (not looked up)"
_XLA = "what the driver reports of it, as XLA's device specification ({}) has it"
_ROCM = "ROCm documentation, GPU hardware specifications"
_GA100 = "NVIDIA A100 Tensor Core GPU architecture white paper, table 4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Numbers of one GPU that a compiler asks for, and a model of time."""

    memory_bytes: int | None
    """None where products of one name differ in it."""
    cores: int
    """SMs; compute units."""
    clock_hz: int
    l2_bytes: int
    source: str


ARCHITECTURES = {
    "A10": "sm_86", "A100": "sm_80", "A30": "sm_80", "A40": "sm_86", "B200": "sm_100a", "GB200": "sm_100a",
    "H100": "sm_90a", "H200": "sm_90a", "L4": "sm_89", "L40S": "sm_89", "MI210": "gfx90a", "MI250X": "gfx90a",
    "MI300A": "gfx942", "MI300X": "gfx942", "MI325X": "gfx942", "MI350X": "gfx950", "MI355X": "gfx950",
    "RTX 2080 Ti": "sm_75", "RTX 3090": "sm_86", "RTX 4090": "sm_89", "T4": "sm_75", "V100": "sm_70", "V100S": "sm_70",
}  # fmt: skip
"""By the front of a name. NVIDIA CUDA GPUs, compute capability (``a``: with what only this generation has, as XLA
compiles for it); ROCm documentation, LLVM target name."""


def architecture_of(name: str) -> str:
    """``sm_90a`` for ``H100 PCIe``."""
    return ARCHITECTURES[max((front for front in ARCHITECTURES if f"{name} ".startswith(f"{front} ")), key=len)]


def _chip(memory_bytes: int | None, cores: int, gigahertz: float, l2_bytes: int, source: str) -> Chip:
    return Chip(
        memory_bytes=memory_bytes, cores=cores, clock_hz=round(gigahertz * GIGA), l2_bytes=l2_bytes, source=source
    )


NVIDIA_CHIPS: dict[str, Chip] = {
    "A10": _chip(24 * GIGA, 72, 1.695, 6 * _MIB, "NVIDIA A10 data sheet" + UNSEEN),
    "A100 40GB": _chip(42_331_013_120, 108, 1.41, 40 * _MIB, _XLA.format("a100_sxm_40")),
    "A100 PCIe 80GB": _chip(79_050_250_240, 108, 1.41, 40 * _MIB, _XLA.format("a100_pcie_80") + "; clock: " + _GA100),
    "A100 SXM 80GB": _chip(85_100_068_864, 108, 1.41, 40 * _MIB, _XLA.format("a100_sxm_80")),
    "A30": _chip(24 * GIGA, 56, 1.44, 24 * _MIB, "NVIDIA A30 data sheet" + UNSEEN),
    "A40": _chip(48 * GIGA, 84, 1.74, 6 * _MIB, "NVIDIA A40 data sheet" + UNSEEN),
    "B200": _chip(191_514_411_008, 148, 1.965, 132_644_864, _XLA.format("b200")),
    "GB200": _chip(197_897_748_480, 152, 2.062, 135_528_448, _XLA.format("gb200")),
    "H100 NVL": _chip(94 * GIGA, 132, 1.785, 50 * _MIB, "NVIDIA H100 NVL product brief" + UNSEEN),
    "H100 PCIe": _chip(84_942_979_072, 114, 1.755, 50 * _MIB, _XLA.format("h100_pcie")),
    "H100 SXM": _chip(84_942_979_072, 132, 1.98, 50 * _MIB, _XLA.format("h100_sxm")),
    "H200": _chip(151_397_597_184, 132, 1.98, 50 * _MIB, _XLA.format("h200")),
    "H200 NVL": _chip(141 * GIGA, 132, 1.785, 50 * _MIB, "NVIDIA H200 NVL product brief" + UNSEEN),
    "L4": _chip(24 * GIGA, 58, 2.04, 48 * _MIB, "NVIDIA L4 data sheet, Ada GPU architecture white paper" + UNSEEN),
    "L40S": _chip(48 * GIGA, 142, 2.52, 96 * _MIB, "NVIDIA L40S data sheet" + UNSEEN),
    "RTX 2080 Ti": _chip(11 * GIGA, 68, 1.545, 5632 << 10, "NVIDIA Turing GPU architecture white paper" + UNSEEN),
    "RTX 3090": _chip(24 * GIGA, 82, 1.695, 6 * _MIB, "NVIDIA Ampere GA102 architecture white paper" + UNSEEN),
    "RTX 4090": _chip(24 * GIGA, 128, 2.52, 72 * _MIB, "NVIDIA Ada GPU architecture white paper" + UNSEEN),
    "T4": _chip(16 * GIGA, 40, 1.59, 4 * _MIB, "NVIDIA T4 data sheet" + UNSEEN),
    "V100 PCIe": _chip(None, 80, 1.38, 6 * _MIB, "NVIDIA V100 data sheet; sold with 16 and with 32 GB" + UNSEEN),
    "V100 SXM2": _chip(None, 80, 1.53, 6 * _MIB, _XLA.format("v100") + "; sold with 16 and with 32 GB"),
    "V100S PCIe": _chip(32 * GIGA, 80, 1.597, 6 * _MIB, "NVIDIA V100S data sheet" + UNSEEN),
}

AMD_CHIPS: dict[str, Chip] = {
    "MI210": _chip(64 * _GIB, 104, 1.7, 8 * _MIB, _ROCM),
    "MI250X (one GCD)": _chip(64 * _GIB, 110, 1.7, 8 * _MIB, _ROCM),
    "MI300A": _chip(128 * _GIB, 228, 2.1, 24 * _MIB, _ROCM),
    "MI300X": _chip(192 * _GIB, 304, 2.1, 32 * _MIB, _ROCM),
    "MI325X": _chip(256 * _GIB, 304, 2.1, 32 * _MIB, _ROCM),
    "MI350X": _chip(288 * _GIB, 256, 2.2, 32 * _MIB, _ROCM),
    "MI355X": _chip(288 * _GIB, 256, 2.4, 32 * _MIB, _ROCM),
}
"""MI300A's memory is its host's, too."""
