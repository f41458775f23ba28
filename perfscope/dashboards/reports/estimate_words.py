"""Words for modelled ranges of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from perfscope.analyzers.estimate import Range


def range_text(found: Range) -> str:
    """``'1.20 to 3.41 ms'``; one number where both ends show alike."""
    low, high = format_ns(found.low), format_ns(found.high)
    if low == high:
        return high
    short = low.removesuffix(high[high.index(" ") :]) if low.endswith(high[high.index(" ") :]) else low
    return f"{short} to {high}"


def of_step(part: Range, step: Range) -> str:
    """``'12-31%'``: of the low end at the low end, of the high end at the high end, the smaller first."""
    shares = sorted(100 * one / whole for one, whole in ((part.low, step.low), (part.high, step.high)) if whole)
    if not shares:
        return "-"
    low, high = (f"{share:.0f}" for share in (shares[0], shares[-1]))
    return f"{high}%" if low == high else f"{low}-{high}%"


def times_text(measured: float, modelled: Range) -> str:
    """How far a measured time lies from the ends: ``'1.8x the low end, 0.9x the high end'``."""
    return f"{measured / max(1, modelled.low):.2f}x the low end, {measured / max(1, modelled.high):.2f}x the high end"
