"""What a device can do at most: FLOP/s by dtype and bytes/s of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TERA = 10**12
GIGA = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Peaks of one product as its vendor states them: dense (never with sparsity), at boost clock."""

    name: str
    vendor: str
    match: str
    """Regular expression over the name the driver reports."""
    peak_flops: Mapping[str, int]
    """FLOP/s of dense matrix products by operand dtype; ``float32`` is without TF32 (``tf32``).

    A dtype that is left out has no matrix unit on this device.
    """
    memory_bandwidth: int
    """Bytes/s between memory and chip."""
    source: str
    """The vendor's document."""

    @property
    def matrix_dtypes(self) -> tuple[str, ...]:
        """dtypes for training that are faster than ``float32`` here, the closest to it in precision first."""
        plain = self.peak_flops["float32"]
        return tuple(name for name in ("tf32", "bfloat16", "float16") if self.peak_flops.get(name, 0) > plain)


def peaks(*, float32: float, tf32: float | None = None, bfloat16: float | None = None, float16: float | None = None,
          fp8: float | None = None) -> dict[str, int]:  # fmt: skip
    """``peak_flops`` from TFLOP/s as data sheets print them."""
    stated = {"float32": float32, "tf32": tf32, "bfloat16": bfloat16, "float16": float16, "fp8": fp8}
    return {name: round(value * TERA) for name, value in stated.items() if value is not None}
