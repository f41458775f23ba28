"""Points of a sweep, spelled shortly."""

from __future__ import annotations

from typing import Any

from perfscope.plugins.ahead.sweep.document import SweptVariant

MEMORY = 1000


def point(words: str, low: int | None, high: int | None, peak: int | None, **more: Any) -> SweptVariant:
    """``point("policy=dots seq=512", 10, 20, 300)``: its time, its peak; it fits if that is not above ``MEMORY``."""
    settings = {name: value for name, _, value in (word.partition("=") for word in words.split())}
    state = "failed" if peak is None else "fits" if peak <= MEMORY else "does not fit"
    return SweptVariant(**{
        "settings": settings, "state": state, "step_low_ns": low, "step_high_ns": high,
        "peak_bytes": peak, "memory_bytes": MEMORY,
        "target": "H100 SXM", **more,
    })  # fmt: skip
