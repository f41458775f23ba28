"""The roofline: the shortest possible time of work on a device at its vendor's peaks, and what limits it.

The roof of a piece of work is the longest of its parts, each at its peak: arithmetic, bytes through device memory,
bytes over the links to other devices, bytes to or from the host. Nothing is faster, unless data stays in a cache; real
kernels reach 60 to 90 % of the roof. Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perfscope.analyzers.devices.device import Device

NS = 1_000_000_000
"""Nanoseconds per second."""

Bound = Literal["compute", "memory", "link", "host", "launch", "unknown"]
"""Limiting resource of some work. ``launch``: the shortest possible kernel, in models that include it."""

_PEAK_OF = {
    "f32": "float32", "bf16": "bfloat16", "f16": "float16", "s8": "int8", "u8": "int8", "s4": "int8", "u4": "int8",
    "uint8": "int8", "f8e4m3": "fp8", "f8e4m3fn": "fp8", "f8e4m3fnuz": "fp8", "f8e4m3b11fnuz": "fp8", "f8e5m2": "fp8",
    "f8e5m2fnuz": "fp8", "f8e3m4": "fp8",
}  # fmt: skip
"""dtype in XLA's spelling (or torch's, if it differs from the tables) -> key of ``peak_flops``."""

_BF16_PASSES = {"default": 1, "high": 3, "highest": 6, "dot_bf16_bf16_f32_x3": 3, "dot_bf16_bf16_f32_x6": 6,
                "dot_bf16_bf16_f32": 1, "dot_bf16_bf16_f32_x9": 9}  # fmt: skip
"""Number of bfloat16 products per float32 product on TPU, or in an algorithm that requests them (``jax.lax.Precision``,
``jax.lax.DotAlgorithmPreset``).
"""

_PLAIN = ("highest", "dot_f32_f32_f32")
"""Precisions of a float32 product that exclude TF32."""


class Roof(Struct, frozen=True, kw_only=True):
    """Shortest possible time of some work on a device, by part, ns."""

    compute_ns: float | None
    """None if the arithmetic or the peak is unknown."""
    memory_ns: float
    link_ns: float | None = 0.0
    """None if the work sends to other devices, or to or from the host, over links of unknown rate."""
    host_ns: float = 0.0
    """Time on the link to the host, if its rate is known."""

    @property
    def roof_ns(self) -> float:
        """Return the shortest possible time.

        With an unknown part, the longest of the known parts, which is still a lower bound.
        """
        return max(self.compute_ns or 0.0, self.memory_ns, self.link_ns or 0.0, self.host_ns)

    @property
    def bound(self) -> Bound:
        """Return the part that takes longest; ``unknown`` if a part is unknown or all parts are 0."""
        if self.compute_ns is None or self.link_ns is None:
            return "unknown"
        longest = self.roof_ns
        if not longest:
            return "unknown"
        if longest == self.host_ns:
            return "host"
        if longest == self.link_ns:
            return "link"
        return "compute" if longest == self.compute_ns else "memory"


def peak_flops(device: Device, dtype: str, precision: str = "default") -> float | None:
    """Return the peak FLOP/s of matrix products of a dtype (in torch's or XLA's spelling); ``None`` without a peak.

    Without a precision, float32 may run in TF32 on a GPU that has it and in one bfloat16 pass on TPU, as XLA does by
    default; ``highest`` is plain float32 or six passes. ``precision``: XLA's spelling, or the requested algorithm
    (``dot_bf16_bf16_f32_x3``). TF32 on a device without it is float32.
    """
    peaks = device.peak_flops
    key = "fp8" if dtype.startswith("float8_") else _PEAK_OF.get(dtype, dtype)
    if key == "tf32":
        key, precision = "float32", "tf32"
    if key != "float32":
        return float(peaks[key]) if key in peaks else None
    passes = _BF16_PASSES.get(precision)
    if passes is not None and ("float32" not in peaks or precision.startswith("dot_")):
        return peaks["bfloat16"] / passes if "bfloat16" in peaks else None
    if "float32" not in peaks:
        return None
    return float(peaks["float32"] if precision in _PLAIN else peaks.get("tf32", peaks["float32"]))


def peak_ratio(device: Device, fast: str, slow: str) -> float:
    """Return the ratio of the peaks of matrix products in ``fast`` and in ``slow``; ``ValueError`` without peaks."""
    peaks = [peak_flops(device, dtype, "highest") for dtype in (fast, slow)]
    if not peaks[0] or not peaks[1]:
        raise ValueError(f"{device.name}: no peak of {fast} or {slow}")
    return peaks[0] / peaks[1]


def flops_ns(device: Device, flops: int, dtype: str, precision: str = "default") -> float | None:
    """Return the shortest time of ``flops`` in matrix products of a dtype; ``None`` if the device's peak is unknown."""
    peak = peak_flops(device, dtype, precision)
    return flops * NS / peak if peak else None


def vector_ns(device: Device, flops: int) -> float:
    """Return the shortest time of arithmetic outside matrix products, at the ``float32`` peak.

    0 without such a peak.
    """
    plain = device.peak_flops.get("float32")
    return flops * NS / plain if plain else 0.0


def bytes_ns(device: Device, moved: float) -> float:
    """Return the shortest time to move bytes through device memory."""
    return moved * NS / device.memory_bandwidth


def link_ns(device: Device, sent: float) -> float | None:
    """Return the shortest time to send bytes over all links of a device; ``None`` if its links are unknown."""
    return sent * NS / device.link_bandwidth if device.link_bandwidth else None


def kernel_roof(device: Device, *, flops: int | None, dtype: str, moved: int, precision: str = "default") -> Roof:
    """Return the roof of a kernel or op with ``flops`` in matrix products and ``moved`` bytes.

    Without FLOPs, of its bytes.
    """
    arithmetic = flops_ns(device, flops, dtype, precision) if flops else 0.0
    return Roof(compute_ns=arithmetic, memory_ns=bytes_ns(device, moved))
