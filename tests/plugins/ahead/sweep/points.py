"""Points of a sweep, spelled shortly."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.predict.spans import Range
from perfscope.plugins.ahead.sweep.front import VariantPoint

MEMORY = 1000


def point(words: str, low: int | None, high: int | None, peak: int | None, **more: Any) -> VariantPoint:
    """``point("policy=dots seq=512", 10, 20, 300)``: its time, its peak; it fits if that is not above ``MEMORY``."""
    settings = tuple((name, value) for name, _, value in (word.partition("=") for word in words.split()))
    step = None if low is None or high is None else Range(low=low, high=high)
    state = "failed" if peak is None else "fits" if peak <= MEMORY else "does not fit"
    return VariantPoint(**{
        "settings": settings, "state": state, "step": step, "peak_bytes": peak, "memory_bytes": MEMORY,
        "target": "H100 SXM", **more,
    })  # fmt: skip
