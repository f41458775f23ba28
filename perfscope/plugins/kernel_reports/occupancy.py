"""Occupancy that the resources of a block allow, from the limits of an architecture."""

from __future__ import annotations

from msgspec import Struct

from perfscope.plugins.kernel_reports.record import KernelReport


class _Limits(Struct, frozen=True):
    """Resources of an SM."""

    warps: int
    blocks: int
    shared_bytes: int


_KIB = 1 << 10
_LIMITS = {
    "sm_70": _Limits(64, 32, 96 * _KIB), "sm_75": _Limits(32, 16, 64 * _KIB), "sm_80": _Limits(64, 32, 164 * _KIB),
    "sm_86": _Limits(48, 16, 100 * _KIB), "sm_89": _Limits(48, 24, 100 * _KIB), "sm_90": _Limits(64, 32, 228 * _KIB),
    "sm_100": _Limits(64, 32, 228 * _KIB), "sm_103": _Limits(64, 32, 228 * _KIB), "sm_120": _Limits(48, 24, 100 * _KIB),
}  # fmt: skip
"""CUDA C++ programming guide, technical specifications per compute capability."""

_REGISTERS = 65_536
_WARP = 32
_REGISTER_UNIT = 256
"""Registers of an SM, and the unit in which a warp gets them."""
_RESERVED = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"}
"""Architectures that reserve 1 KiB of shared memory per block."""


def possible_occupancy(architecture: str, report: KernelReport) -> tuple[float | None, str | None]:
    """Return the percent of an SM's warps that blocks of a kernel can fill, and the resource that limits it.

    Resources that are unknown do not limit, so it is an upper bound. ``(None, None)`` for unknown architectures.
    """
    architecture = architecture.removesuffix("a")
    limits, threads = _LIMITS.get(architecture), report.threads_per_block
    if limits is None or not threads:
        return None, None
    warps = -(-threads // _WARP)
    blocks = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if report.registers:
        warp = -(-report.registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        blocks["registers"] = _REGISTERS // (warp * warps)
    if report.shared_bytes:
        reserved = _KIB if architecture in _RESERVED else 0
        blocks["shared memory"] = limits.shared_bytes // (report.shared_bytes + reserved)
    least = min(blocks.values())
    names = [name for name, count in blocks.items() if count == least]
    return 100.0 * least * warps / limits.warps, " and ".join(names)
