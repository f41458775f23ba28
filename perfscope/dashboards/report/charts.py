"""Charts of reports as data: device time, steps, peaks against times, and the change of a step from part to part.

`renderers/charts.py` draws them. Colours are safe for colour-blind readers and work on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perfscope.dashboards.report.blocks import Axis, Box, Dot, Lane, Lanes, Legend, Line, Plot
from perfscope.dashboards.report.renderers.values import BETTER, WORSE, signed_ns
from perfscope.model.units import format_ns, format_share

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Step
    from perfscope.dashboards.report.sections.devices import DeviceRow
    from perfscope.model.documents.comparison import Launch


PARTS = (
    ("compute", "compute_ns", "#3f7fd6"),
    ("exposed communication", "exposed_communication_ns", "#e0892b"),
    ("exposed copy", "exposed_copy_ns", "#9465c2"),
    ("idle", "idle_ns", "#9aa3af"),
)
"""(words, attribute of ``DeviceRow``, colour) of each part of a device's span, left to right."""

PART_COLORS = ("#3f7fd6", "#e0892b", "#9465c2", "#1f8f74", "#cf4a32", "#c2a21f", "#4aa3b8", "#9aa3af")
"""Colours for the parts of a whole, in order."""

CAUSE_COLORS = {
    "compute": "#3f7fd6", "exposed_communication": "#e0892b", "exposed_copy": "#9465c2", "sync": "#cf4a32",
    "input": "#c2a21f", "launch": "#4aa3b8", "compilation": "#8a5a44", "memory": "#d477a8",
    "collective_setup": "#b0722a", "garbage_collection": "#6b8e23", "saving": "#7f7fbf", "sleeping": "#7b8794",
    "other_ranks": "#b5838d", "other_host": "#5b6b7b", "core_wait": "#8a5a9e", "dependency": "#1f8f74",
    "unexplained": "#aab2bd",
}  # fmt: skip
"""Colour by cause of the account of a step."""

FREE_COLOR, TRACED_COLOR = "#3f7fd6", "#9aa3af"

MOST_BARS = 240
"""Most bars in a step chart: each is still one pixel wide on a phone."""

FITS, TOO_MUCH = "#3f7fd6", "#9aa3af"

BASE, HEAD = "#6f7c8f", "#e0892b"

_FROM_ZERO = 0.5
"""If the smallest level exceeds this share of the largest, the axis does not begin at zero: 3% would be a hair."""
_PAD = 0.06


def device_lanes(rows: Sequence[DeviceRow]) -> Lanes:
    """The span of each device as a bar of its parts; the parts add up to the full width."""
    lanes = []
    for row in rows:
        shares = ", ".join(f"{words} {share}" for (words, _, _), share in zip(PARTS, row.shares(), strict=True))
        parts = [
            (
                f"{words}: {format_ns(getattr(row, attribute))}, {format_share(getattr(row, attribute), row.span_ns)}",
                row.share(getattr(row, attribute)) or 0.0,
                color,
                0.45 if words == "idle" else 1.0,
            )
            for words, attribute, color in PARTS
        ]
        name = row.device if row.ranks == "-" else f"rank {row.ranks} · {row.device}"
        lanes.append(Lane(name=name, boxes=_in_a_row(parts), words=f"{row.device}: {shares}"))
    return Lanes(lanes=tuple(lanes), legend=Legend(tuple((words, color) for words, _, color in PARTS)))


def parts_lanes(parts: Sequence[tuple[str, float]]) -> Lanes:
    """Shares of one whole, in order, as one bar; each part has its words in the legend."""
    colored = [
        (words, share, PART_COLORS[number % len(PART_COLORS)], 1.0) for number, (words, share) in enumerate(parts)
    ]
    lane = Lane(name="", boxes=_in_a_row(colored), words="; ".join(words for words, _ in parts))
    legend = Legend(tuple((words, color) for words, _, color, _ in colored), is_below=True)
    return Lanes(lanes=(lane,), legend=legend)


def _in_a_row(parts: Sequence[tuple[str, float, str, float]]) -> tuple[Box, ...]:
    """(title, share of the width, colour, opacity) from left to right."""
    boxes, left = [], 0.0
    for title, share, color, opacity in parts:
        if share:
            boxes.append(Box(start=left, end=left + share, color=color, title=title, opacity=opacity))
        left += share
    return tuple(boxes)


def steps_plot(steps: Sequence[Step], legend: Legend) -> Plot:
    """One bar per step from zero, in order. If there are many steps, each bar is the longest of several."""
    longest = max((step.duration_ns for step in steps), default=0)
    bunch = max(1, -(-len(steps) // MOST_BARS))
    bunches = [steps[first : first + bunch] for first in range(0, len(steps), bunch)]
    boxes = []
    for index, members in enumerate(bunches):
        slowest = max(members, key=lambda step: step.duration_ns)
        color = TRACED_COLOR if slowest.traced else FREE_COLOR
        title = f"step {slowest.number}: {format_ns(slowest.duration_ns)}" + (" traced" if slowest.traced else "")
        boxes.append(Box(start=index, end=index + 0.8, top=slowest.duration_ns, color=color, title=title))
    bunched = f"; each bar is the longest of {bunch}" if bunch > 1 else ""
    return Plot(
        words=f"{len(steps)} step times, the longest {format_ns(longest)}",
        x=Axis(low=0, high=max(1, len(bunches))),
        y=Axis(low=0, high=max(1, longest)),
        boxes=tuple(boxes),
        legend=legend,
        below=(f"{len(steps):,} steps{bunched}", f"tallest {format_ns(longest)}"),
    )


def peaks_plot(
    dots: Sequence[Dot],
    lines: Sequence[Line],
    limits: Sequence[tuple[float, str]],
    *,
    logarithmic: bool,
    **texts: Any,
) -> Plot:
    """Peaks of memory in bytes (``y`` of the dots) against times in ns (``x``), with limits in bytes.

    ``texts``: further fields of `Plot`.
    """
    lows = [dot.x if dot.low is None else dot.low for dot in dots]
    highs = [dot.x if dot.high is None or dot.high == inf else dot.high for dot in dots]
    peaks = [dot.y for dot in dots]
    tallest = max(*peaks, *(size for size, _ in limits), 1.0)
    if logarithmic:
        across = (max(min(lows) / 1.3, 1.0), max(highs) * 1.3)
        up = (max(min(peaks) / 1.5, 1.0), tallest * 1.3)
    else:
        first, last = min(*lows, 0.0), max(*highs, 0.0)
        across, up = (first, last if last > first else first + 1), (0.0, tallest)
    return Plot(
        x=Axis(low=across[0], high=across[1], unit="ns", logarithmic=logarithmic),
        y=Axis(low=up[0], high=up[1], unit="bytes", logarithmic=logarithmic),
        dots=tuple(dots),
        lines=tuple(lines),
        limits=tuple(limits),
        **texts,
    )


# A comparison: the change of the step from part to part, and launches one by one. Worse and better differ in colour,
# in direction and in the sign of the number next to them.


class Fall(Struct, frozen=True, kw_only=True):
    """A row of a waterfall from one level to the next, in ns. A whole (``base``, ``head``) is drawn from the axis."""

    name: str
    start_ns: int
    end_ns: int
    whole: bool = False

    @property
    def delta_ns(self) -> int:
        """Growth of the step in this row, ns."""
        return self.end_ns - self.start_ns


def falls(base_ns: int, head_ns: int, changes: Sequence[tuple[str, int]]) -> list[Fall]:
    """Build the rows from base to head. ``ValueError`` unless the changes sum to the difference."""
    rows = [Fall(name="base", start_ns=0, end_ns=base_ns, whole=True)]
    level = base_ns
    for name, change in changes:
        rows.append(Fall(name=name, start_ns=level, end_ns=level + change))
        level += change
    if level != head_ns:
        raise ValueError(f"the changes lead to {level} ns, not to {head_ns}")
    return [*rows, Fall(name="head", start_ns=0, end_ns=head_ns, whole=True)]


def axis_of(rows: Sequence[Fall]) -> tuple[float, float]:
    """(left, right) of the axis in ns; left is zero unless all levels are close together."""
    levels = [row.end_ns for row in rows]
    low, high = min(levels), max(levels)
    if low < _FROM_ZERO * high:
        return min(0.0, float(low)), max(high, 1) * (1 + _PAD)
    margin = max((high - low) * 0.25, high * 0.001, 1.0)
    return low - margin, high + margin * _PAD


def waterfall(rows: Sequence[Fall]) -> Lanes:
    """Rows from base to head, each with its change."""
    left, right = axis_of(rows)
    lanes = []
    for row in rows:
        first, last = (left, row.end_ns) if row.whole else sorted((row.start_ns, row.end_ns))
        color = (BASE if row.name == "base" else HEAD) if row.whole else WORSE if row.delta_ns > 0 else BETTER
        amount = format_ns(row.end_ns) if row.whole else signed_ns(row.delta_ns)
        box = Box(start=first, end=last, color=color)
        lanes.append(Lane(name=row.name, boxes=(box,), words=f"{row.name}: {amount}", amount=amount, mark=row.end_ns))
    begins = (f"The axis begins at {format_ns(left)}, not at zero.",) if left > 0 else ()
    return Lanes(lanes=tuple(lanes), start=left, end=right, below=begins)


def launches_plot(launches: Sequence[Launch]) -> Plot | None:
    """Each pair of launches in order, base and head joined by a line; ``None`` if no launch has a time."""
    kept = [launch for launch in launches if launch.ns is not None]
    if not kept:
        return None
    values = [launch.ns for launch in kept if launch.ns is not None]
    low, high = min(values), max(values)
    pairs = list(dict.fromkeys((launch.phase, launch.pair) for launch in kept))
    places = {pair: number + 0.5 for number, pair in enumerate(pairs)}
    times: dict[tuple[str, int], list[float]] = {}
    for launch in kept:
        times.setdefault((launch.phase, launch.pair), []).append(launch.ns or 0)
    lines = [
        Line(points=((places[pair], min(ends)), (places[pair], max(ends))), color="currentColor", kind="faint")
        for pair, ends in times.items()
    ]
    lines += [
        Line(points=((number, low), (number, high)), color="currentColor")
        for number in range(1, len(pairs))
        if pairs[number][0] != pairs[number - 1][0]
    ]
    dots = tuple(
        Dot(
            x=places[launch.phase, launch.pair],
            y=launch.ns or 0,
            color=BASE if launch.arm == "base" else HEAD,
            title=f"{launch.arm}, {launch.phase} {launch.pair}: {format_ns(launch.ns or 0)}",
        )
        for launch in kept
    )
    phases = dict.fromkeys(launch.phase for launch in kept)
    sides = (("base", BASE), ("head", HEAD), ("one column per pair of launches, in order", ""))
    return Plot(
        words=f"{len(kept)} launches in {len(pairs)} pairs, {format_ns(low)} to {format_ns(high)}",
        x=Axis(low=0, high=len(pairs)),
        y=Axis(low=low, high=high),
        dots=dots,
        lines=tuple(lines),
        legend=Legend(sides),
        above=(f"slowest {format_ns(high)}",),
        below=(f"fastest {format_ns(low)}", ", then ".join(phases)),
    )
