"""The roofline: the least time that work takes on a device, at the peaks its vendor states, and what bounds it.

The roof of a piece of work is the longest of its parts, each at its peak: arithmetic, bytes through device memory,
bytes over the links to other devices, bytes to or from the host. Nothing runs faster, except where data stays in a
cache; real kernels reach 60 to 90% of it. Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perfscope.analyzers.devices.device import Device

NS = 1_000_000_000
"""Nanoseconds of a second."""

Bound = Literal["compute", "memory", "link", "host", "launch", "unknown"]
"""What the time of some work is made of. ``launch``: the shortest a kernel takes, in models that know one."""

_PEAK_OF = {
    "f32": "float32", "bf16": "bfloat16", "f16": "float16", "s8": "int8", "u8": "int8", "s4": "int8", "u4": "int8",
    "uint8": "int8", "f8e4m3": "fp8", "f8e4m3fn": "fp8", "f8e4m3fnuz": "fp8", "f8e4m3b11fnuz": "fp8", "f8e5m2": "fp8",
    "f8e5m2fnuz": "fp8", "f8e3m4": "fp8",
}  # fmt: skip
"""dtypes as XLA spells them (and torch, where it does not spell them like the tables) -> key of ``peak_flops``."""

_BF16_PASSES = {"default": 1, "high": 3, "highest": 6, "dot_bf16_bf16_f32_x3": 3, "dot_bf16_bf16_f32_x6": 6,
                "dot_bf16_bf16_f32": 1, "dot_bf16_bf16_f32_x9": 9}  # fmt: skip
"""Products of bfloat16 parts that a float32 product is made of on TPU, or where an algorithm asks for it
(``jax.lax.Precision``, ``jax.lax.DotAlgorithmPreset``)."""

_PLAIN = ("highest", "dot_f32_f32_f32")
"""Precisions of a float32 product that rule TF32 out."""


class Roof(Struct, frozen=True, kw_only=True):
    """The least time that some work takes on a device, by part. Times in ns."""

    compute_ns: float | None
    """None: arithmetic or peak not known."""
    memory_ns: float
    link_ns: float | None = 0.0
    """None: it sends to other devices over links that are not known, or to or from the host over a link that is not."""
    host_ns: float = 0.0
    """Where the link to the host is known."""

    @property
    def roof_ns(self) -> float:
        """The least time; where a part is unknown, the longest of the others, a lower bound still."""
        return max(self.compute_ns or 0.0, self.memory_ns, self.link_ns or 0.0, self.host_ns)

    @property
    def bound(self) -> Bound:
        """What takes longest; ``unknown`` where a part is, or where nothing is counted."""
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
    """FLOP/s the device reaches at most in matrix products of a dtype, as torch or XLA spell it; ``None``: no peak.

    float32 without a request for precision may run in TF32 on a GPU that has it and in one bfloat16 pass on
    TPU, as XLA does by default; ``highest`` is plain float32 or six passes. ``precision``: as XLA spells it, or the
    algorithm that was asked for (``dot_bf16_bf16_f32_x3``). TF32 on a device without it is float32.
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
    """How many times the peak of products in ``slow`` that of products in ``fast`` is; ``ValueError`` without peaks."""
    peaks = [peak_flops(device, dtype, "highest") for dtype in (fast, slow)]
    if not peaks[0] or not peaks[1]:
        raise ValueError(f"{device.name}: no peak of {fast} or {slow}")
    return peaks[0] / peaks[1]


def flops_ns(device: Device, flops: int, dtype: str, precision: str = "default") -> float | None:
    """Least time of ``flops`` in matrix products of a dtype; ``None`` where the device's peak for them is not known."""
    peak = peak_flops(device, dtype, precision)
    return flops * NS / peak if peak else None


def vector_ns(device: Device, flops: int) -> float:
    """Least time of arithmetic outside of matrix products, at the ``float32`` peak; 0 where no such peak is stated."""
    plain = device.peak_flops.get("float32")
    return flops * NS / plain if plain else 0.0


def bytes_ns(device: Device, moved: float) -> float:
    """Least time to move bytes through device memory."""
    return moved * NS / device.memory_bandwidth


def link_ns(device: Device, sent: float) -> float | None:
    """Least time to send bytes over all links of a device; ``None`` where its links are not known."""
    return sent * NS / device.link_bandwidth if device.link_bandwidth else None


def kernel_roof(device: Device, *, flops: int | None, dtype: str, moved: int, precision: str = "default") -> Roof:
    """The roof of a kernel or op of ``flops`` in products of a dtype and ``moved`` bytes; without FLOPs: its bytes."""
    arithmetic = flops_ns(device, flops, dtype, precision) if flops else 0.0
    return Roof(compute_ns=arithmetic, memory_ns=bytes_ns(device, moved))
