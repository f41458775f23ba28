"""Intervals of relative changes on one scale: as a picture, and as a line of characters."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Effect
from perfscope.dashboards.report.renderers.values import percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfscope.dashboards.report.blocks import Value

ENDS = tuple(step * 10.0**power for power in range(-3, 4) for step in (1, 2, 3, 5))
"""Where a scale may end, relative: 0.1% to 5,000%."""

HALF = 10
"""Characters on each side of the middle."""

WORSE, BETTER, PLAIN = "#cf4a32", "#1f8f74", "#8a94a3"


def scale_of(rows: Iterable[Sequence[Value]]) -> float | None:
    """The end of a scale around 0 that holds every interval of a table; ``None`` where there is none."""
    ends = [
        abs(end)
        for row in rows
        for value in row
        if isinstance(value, Effect)
        for end in (value.low, value.high)
        if end is not None
    ]
    return next((end for end in ENDS if end >= max(ends)), ENDS[-1]) if ends else None


def scale_title(end: float) -> str:
    """``-10% … +10%``."""
    return f"-{100 * end:g}% … +{100 * end:g}%"


def text_bar(effect: Effect, end: float) -> str:
    """``··········│··──●──···``: the middle is no change, both ends are ``end``; ``▶`` lies beyond it."""
    cells = ["·"] * (2 * HALF + 1)
    if effect.low is None or effect.high is None:
        return ""
    for index in range(_cell(effect.low, end), _cell(effect.high, end) + 1):
        cells[index] = "─"
    cells[HALF] = "│"
    beyond = "▶" if effect.change > 0 else "◀"
    cells[_cell(effect.change, end)] = "●" if abs(effect.change) <= end else beyond
    return "".join(cells)


def _cell(share: float, end: float) -> int:
    return min(max(round(HALF * share / end), -HALF), HALF) + HALF


def interval_bar(effect: Effect, end: float) -> str:
    """The interval as SVG between ``-end`` and ``end``; the band in the middle does not matter."""
    if effect.low is None or effect.high is None:
        return ""

    def across(share: float) -> float:
        return 110 + 104 * min(max(share / end, -1.0), 1.0)

    shapes = []
    if effect.least:
        low, high = across(-effect.least), across(effect.least)
        shapes.append(f'<rect x="{low:.1f}" width="{high - low:.1f}" height="22" fill="{PLAIN}" opacity="0.22"/>')
    shapes.append('<rect x="109.5" width="1" height="22" fill="currentColor" opacity="0.55"/>')
    color = {"worse": WORSE, "better": BETTER}.get(effect.tone, PLAIN)
    low, high = across(effect.low), across(effect.high)
    shapes.append(f'<rect x="{low:.1f}" y="9.5" width="{max(high - low, 1):.1f}" height="3" fill="{color}"/>')
    if abs(effect.change) <= end:
        shapes.append(f'<circle cx="{across(effect.change):.1f}" cy="11" r="5" fill="{color}"/>')
    else:
        tip = 218 if effect.change > 0 else 2
        back = tip - 9 if effect.change > 0 else tip + 9
        shapes.append(f'<path d="M{tip} 11 L{back} 5 L{back} 17 Z" fill="{color}"/>')
    words = f"{percent(effect.change)}, interval {percent(effect.low)} to {percent(effect.high)}"
    return (
        f'<svg class="ps-interval" role="img" aria-label="{escape(words)}" viewBox="0 0 220 22"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
    )
