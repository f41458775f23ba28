"""Small pictures as inline SVG: where the time of a device went, and how long the steps took.

Shapes only, stretched to the width there is; words stand beside them in HTML, so that they stay
readable on a phone. Colours are safe for colour-blind readers and work on light and dark ground.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.model.units import format_ns, format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.engine import Step
    from perfscope.dashboards.report.device_rows import DeviceRow

PARTS = (
    ("compute", "compute_ns", "#3f7fd6"),
    ("exposed communication", "exposed_communication_ns", "#e0892b"),
    ("exposed copy", "exposed_copy_ns", "#9465c2"),
    ("idle", "idle_ns", "#9aa3af"),
)
"""(words, attribute of a ``DeviceRow``, colour) of the parts of a device's span, left to right."""

FREE_COLOR, TRACED_COLOR = "#3f7fd6", "#9aa3af"

MOST_BARS = 240
"""Bars of a step chart: each is still a pixel wide on a phone."""

_WIDTH = 1000
_HEIGHT = 100


def device_bar(row: DeviceRow) -> str:
    """The span of one device as a bar of its parts; the parts sum to the whole width."""
    pieces, left = [], 0.0
    for words, attribute, color in PARTS:
        part = getattr(row, attribute)
        width = _WIDTH * part / row.span_ns if row.span_ns else 0.0
        if width:
            title = f"{words}: {format_ns(part)}, {format_share(part, row.span_ns)}"
            opacity = ' fill-opacity="0.45"' if words == "idle" else ""
            pieces.append(
                f'<rect x="{left:.2f}" y="0" width="{width:.2f}" height="{_HEIGHT}" fill="{color}"{opacity}>'
                f"<title>{escape(title)}</title></rect>"
            )
        left += width
    shares = ", ".join(f"{words} {share}" for (words, _, _), share in zip(PARTS, row.shares(), strict=True))
    return _picture("bar", f"{row.device}: {shares}", "".join(pieces))


def share_bar(share: float, start: float = 0.0) -> str:
    """A share of 0 to 1 as a bar that begins at ``start``; the number stands beside it."""
    width = _WIDTH * min(max(share, 0.0), 1.0)
    bar = f'<rect x="{_WIDTH * start:.1f}" width="{width:.1f}" height="{_HEIGHT}" fill="{FREE_COLOR}"/>'
    return (
        f'<svg class="ps-share" aria-hidden="true" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
        f' xmlns="http://www.w3.org/2000/svg">{bar}</svg>'
    )


def swatch(color: str) -> str:
    """A square of a legend."""
    square = f'<rect width="10" height="10" rx="2" fill="{color}"/>'
    return f'<svg class="ps-swatch" width="10" height="10" aria-hidden="true">{square}</svg>'


def legend() -> str:
    """The colours of a device bar in words."""
    return "".join(f"<span>{swatch(color)} {escape(words)}</span>" for words, _, color in PARTS)


def step_chart(steps: Sequence[Step]) -> str:
    """A bar a step from zero, in order. Of many steps each bar is the longest of a few."""
    longest = max((step.duration_ns for step in steps), default=0)
    if not longest:
        return ""
    bunch = -(-len(steps) // MOST_BARS)
    bunches = [steps[first : first + bunch] for first in range(0, len(steps), bunch)]
    slot = _WIDTH / len(bunches)
    bars = []
    for index, members in enumerate(bunches):
        slowest = max(members, key=lambda step: step.duration_ns)
        height = _HEIGHT * slowest.duration_ns / longest
        color = TRACED_COLOR if slowest.traced else FREE_COLOR
        title = f"step {slowest.number}: {format_ns(slowest.duration_ns)}" + (" traced" if slowest.traced else "")
        bars.append(
            f'<rect x="{index * slot:.2f}" y="{_HEIGHT - height:.2f}" width="{0.8 * slot:.2f}" height="{height:.2f}"'
            f' fill="{color}"><title>{escape(title)}</title></rect>'
        )
    return _picture("steps", f"{len(steps)} step times, the longest {format_ns(longest)}", "".join(bars))


def _picture(kind: str, words: str, shapes: str) -> str:
    return (
        f'<svg class="ps-{kind}" role="img" aria-label="{escape(words)}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' preserveAspectRatio="none" xmlns="http://www.w3.org/2000/svg">{shapes}</svg>'
    )
