"""Intervals on one scale: how wide it is, and each as a line of characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.compare_words import SINGLE, has_interval

if TYPE_CHECKING:
    from perfscope.dashboards.reports.compare_types import Metric

ENDS = tuple(step * 10.0**power for power in range(-3, 4) for step in (1, 2, 3, 5))
"""Where a scale may end, relative: 0.1% to 5,000%."""

HALF = 10
"""Characters on each side of the middle."""


def scale_of(metrics: Iterable[Metric]) -> float | None:
    """The end of a scale around 0 that holds every interval of launches; ``None`` where there is none."""
    ends = [
        abs(end)
        for one in metrics
        if one.known != SINGLE and has_interval(one)
        for end in (one.low, one.high)
        if end is not None
    ]
    return next((end for end in ENDS if end >= max(ends)), ENDS[-1]) if ends else None


def text_bar(metric: Metric, end: float) -> str:
    """``··········│··──●──···``: the middle is no change, both ends are ``end``; ``▶`` lies beyond it."""
    if metric.effect is None:
        return ""
    cells = ["·"] * (2 * HALF + 1)
    if metric.low is not None and metric.high is not None:
        for at in range(_at(metric.low, end), _at(metric.high, end) + 1):
            cells[at] = "─"
    cells[HALF] = "│"
    cells[_at(metric.effect, end)] = "●" if abs(metric.effect) <= end else "▶" if metric.effect > 0 else "◀"
    return "".join(cells)


def _at(share: float, end: float) -> int:
    return min(max(round(HALF * share / end), -HALF), HALF) + HALF
