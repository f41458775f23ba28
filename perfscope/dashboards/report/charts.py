"""Small pictures as inline SVG: device time, steps, scatter plots, and the change of a step from part to part.

The SVG holds shapes only and stretches to the width available; words are HTML next to it, so that they stay readable
on a phone. Colours are safe for colour-blind readers and work on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from math import ceil, log, log2
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.dashboards.report.renderers.values import BETTER, WORSE, signed_ns
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

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

WIDE, HIGH = 1000, 100
"""Width and height of a stretched picture, in its own units."""

FITS, TOO_MUCH = "#3f7fd6", "#9aa3af"

_TOP, _BOTTOM = 24, 270
_LEFT, _RIGHT = 13.0, 96.0
"""Vertical ends in pixels from the top; horizontal ends in percent of the width."""

MOST_TICKS = 5

BASE, HEAD = "#6f7c8f", "#e0892b"

COMPARE_STYLE = """
.ps-fall{display:block;width:100%;height:20px;color:var(--ink)}
.ps-launches{display:block;width:100%;height:auto;color:var(--ink)}
.fall{display:grid;grid-template-columns:minmax(0,16em) minmax(0,1fr) 6.5em;gap:2px 14px;align-items:center;
padding:3px 0;font-size:13px}
.fall .n{font-variant-numeric:tabular-nums}
.fall>div:first-child{overflow-wrap:anywhere}
@media (max-width:640px){.fall{grid-template-columns:minmax(0,1fr) auto}.fall svg{grid-column:1/-1;grid-row:2}}
"""

_FROM_ZERO = 0.5
"""If the smallest level exceeds this share of the largest, the axis does not begin at zero: 3% would be a hair."""
_PAD = 0.06


def device_bar(row: DeviceRow) -> str:
    """The span of one device as a bar of its parts; the parts add up to the full width."""
    shares = ", ".join(f"{words} {share}" for (words, _, _), share in zip(PARTS, row.shares(), strict=True))
    pieces = []
    for words, attribute, color in PARTS:
        part = getattr(row, attribute)
        title = f"{words}: {format_ns(part)}, {format_share(part, row.span_ns)}"
        pieces.append((title, row.share(part) or 0.0, color, 0.45 if words == "idle" else 1.0))
    return stretched("bar", f"{row.device}: {shares}", _in_a_row(pieces))


def _in_a_row(pieces: Iterable[tuple[str, float, str, float]]) -> str:
    """(title, share of the width, colour, opacity) of parts drawn from left to right."""
    shapes, left = [], 0.0
    for title, share, color, opacity in pieces:
        if share:
            shapes.append(rect(left, 0, WIDE * share, HIGH, color, title=title, opacity=opacity))
        left += WIDE * share
    return "".join(shapes)


def rect(x: float, y: float, width: float, height: float, color: str, *, title: str = "", opacity: float = 1.0) -> str:
    """A rectangle with its escaped tooltip."""
    faint = f' fill-opacity="{opacity}"' if opacity < 1 else ""
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{color}"{faint}'
    return f"<rect {place}><title>{escape(title)}</title></rect>" if title else f"<rect {place}/>"


def stretched(kind: str, words: str, shapes: str, *, height: float = HIGH) -> str:
    """Wrap shapes drawn in ``WIDE`` times ``height`` units into an SVG that stretches to the width available.

    ``words`` describe the picture to screen readers; ``''`` if the text next to it has the same.
    """
    known = f'role="img" aria-label="{escape(words)}"' if words else 'aria-hidden="true"'
    return (
        f'<svg class="ps-{kind}" {known} viewBox="0 0 {WIDE} {height:.0f}"'
        f' preserveAspectRatio="none" xmlns="http://www.w3.org/2000/svg">{shapes}</svg>'
    )


def share_bar(share: float) -> str:
    """A share from 0 to 1 as a bar; the number is shown next to it."""
    return stretched("share", "", rect(0, 0, WIDE * min(max(share, 0.0), 1.0), HIGH, FREE_COLOR))


def parts_bar(parts: Sequence[tuple[str, float]]) -> str:
    """Shares of one whole, in order, as one bar with a legend that describes each part."""
    colored = [
        (words, share, PART_COLORS[number % len(PART_COLORS)], 1.0) for number, (words, share) in enumerate(parts)
    ]
    entries = "".join(f"<span>{swatch(color)} {escape(words)}</span>" for words, _, color, _ in colored)
    bar = stretched("bar", "; ".join(words for words, _ in parts), _in_a_row(colored))
    return f'{bar}<div class="legend below">{entries}</div>'


def swatch(color: str) -> str:
    """A coloured square for a legend."""
    square = f'<rect width="10" height="10" rx="2" fill="{color}"/>'
    return f'<svg class="ps-swatch" width="10" height="10" aria-hidden="true">{square}</svg>'


def legend() -> str:
    """Legend of the colours in a device bar."""
    return "".join(f"<span>{swatch(color)} {escape(words)}</span>" for words, _, color in PARTS)


def step_chart(steps: Sequence[Step]) -> str:
    """One bar per step from zero, in order. With many steps each bar is the longest of a few."""
    longest = max((step.duration_ns for step in steps), default=0)
    if not longest:
        return ""
    bunch = -(-len(steps) // MOST_BARS)
    bunches = [steps[first : first + bunch] for first in range(0, len(steps), bunch)]
    slot = WIDE / len(bunches)
    bars = []
    for index, members in enumerate(bunches):
        slowest = max(members, key=lambda step: step.duration_ns)
        height = HIGH * slowest.duration_ns / longest
        color = TRACED_COLOR if slowest.traced else FREE_COLOR
        title = f"step {slowest.number}: {format_ns(slowest.duration_ns)}" + (" traced" if slowest.traced else "")
        bars.append(rect(index * slot, HIGH - height, 0.8 * slot, height, color, title=title))
    return stretched("steps", f"{len(steps)} step times, the longest {format_ns(longest)}", "".join(bars))


STYLE = """
.ps-scatter{display:block;overflow:visible;width:100%;height:304px;margin:4px 0 10px}
.ps-scatter text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft);
paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}
.ps-scatter .ps-said{fill:var(--ink);font-weight:600}
.ps-scatter .ps-grid{stroke:var(--line)}
.ps-scatter .ps-limit{stroke:var(--high);stroke-dasharray:6 4}
.ps-scatter .ps-reach{stroke-width:2px;stroke-opacity:.4}
.ps-scatter .ps-join{stroke-width:1px;stroke-opacity:.5;stroke-dasharray:2 3}
.ps-scatter .ps-ring{fill:none;stroke:var(--ink);stroke-width:2px}
.ps-key{display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 6px;padding:0;list-style:none}
"""


class Dot(Struct, frozen=True, kw_only=True):
    """A plan or variant drawn at ``ns``; its time is between ``low_ns`` and ``high_ns`` (``None``: unbounded)."""

    ns: float
    low_ns: float
    high_ns: float | None
    peak_bytes: float
    title: str
    color: str = FITS
    ring: bool = False
    label: str = ""
    line: str = ""
    """Dots with the same line name are joined in the order given; ``''``: not joined."""


class _Axis(Struct, frozen=True):
    low: float
    high: float
    logarithmic: bool

    def share(self, value: float) -> float:
        """Position of a value between both ends, 0 to 1."""
        if self.logarithmic:
            return (log(max(value, 1)) - log(self.low)) / (log(self.high) - log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, *, binary: bool) -> list[float]:
        """Round values for an axis, about ``MOST_TICKS`` of them."""
        if self.logarithmic:
            steps = [2**power for power in range(63)] if binary else [n * 10**k for k in range(18) for n in (1, 2, 5)]
            inside = [float(value) for value in steps if self.low <= value <= self.high]
            return inside[:: max(1, ceil(len(inside) / MOST_TICKS))]
        least = (self.high - self.low) / MOST_TICKS
        decimal = (n * 10.0**k for k in range(18) for n in (1, 2, 5))
        step = 2.0 ** ceil(log2(max(least, 1))) if binary else next(value for value in decimal if value >= least)
        first = ceil(self.low / step)
        return [step * index for index in range(first, int(self.high / step) + 1)]


def scatter(dots: Sequence[Dot], limits: Sequence[tuple[float, str]] = (), *, logarithmic: bool, words: str) -> str:
    """The scatter plot, with ``limits`` (bytes, label) as dashed lines; ``''`` without dots.

    ``words`` describe it to screen readers.
    """
    if not dots:
        return ""
    across, down = _axes(dots, [size for size, _ in limits], logarithmic=logarithmic)

    def x(ns: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(max(across.share(ns), 0.0), 1.0)

    def y(size: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * down.share(size)

    shapes = []
    for size in down.ticks(binary=True):
        shapes.append(f'<line class="ps-grid" x1="{_LEFT}%" x2="100%" y1="{y(size):.1f}" y2="{y(size):.1f}"/>')
        shapes.append(_text(f"{_LEFT - 1}%", y(size) + 4, format_bytes(size), "end"))
    for ns in across.ticks(binary=False):
        shapes.append(f'<line class="ps-grid" x1="{x(ns):.2f}%" x2="{x(ns):.2f}%" y1="{_TOP}" y2="{_BOTTOM}"/>')
        shapes.append(_text(f"{x(ns):.2f}%", _BOTTOM + 18, format_ns(ns) if ns else "0", "middle"))
    for size, name in limits:
        shapes.append(f'<line class="ps-limit" x1="{_LEFT}%" x2="100%" y1="{y(size):.1f}" y2="{y(size):.1f}"/>')
        shapes.append(_text("100%", y(size) - 5, f"{name}: {format_bytes(size)}", "end"))
    lines: dict[str, list[Dot]] = {}
    for dot in dots:
        lines.setdefault(dot.line, []).append(dot)
    for name, members in lines.items():
        for first, second in pairwise(members if name else ()):
            ends = (
                f'x1="{x(first.ns):.2f}%" y1="{y(first.peak_bytes):.1f}" '
                f'x2="{x(second.ns):.2f}%" y2="{y(second.peak_bytes):.1f}"'
            )
            shapes.append(f'<line class="ps-join" stroke="{first.color}" {ends}/>')
    for dot in dots:
        end = _RIGHT if dot.high_ns is None else x(dot.high_ns)
        shapes += _dot(dot, x(dot.low_ns), x(dot.ns), end, y(dot.peak_bytes))
    return f'<svg class="ps-scatter" role="img" aria-label="{escape(words)}">{"".join(shapes)}</svg>'


def _axes(dots: Sequence[Dot], limits: Sequence[float], *, logarithmic: bool) -> tuple[_Axis, _Axis]:
    lows = [dot.low_ns for dot in dots]
    highs = [dot.high_ns if dot.high_ns is not None else dot.ns for dot in dots]
    peaks = [dot.peak_bytes for dot in dots]
    tallest = max(*peaks, *limits, 1.0)
    if logarithmic:
        return (
            _Axis(max(min(lows) / 1.3, 1.0), max(highs) * 1.3, logarithmic),
            _Axis(max(min(peaks) / 1.5, 1.0), tallest * 1.3, logarithmic),
        )
    first, last = min(*lows, 0.0), max(*highs, 0.0)
    return _Axis(first, last if last > first else first + 1, logarithmic), _Axis(0.0, tallest, logarithmic)


def _dot(dot: Dot, low: float, place: float, high: float, y: float) -> Iterator[str]:
    dashes = ' stroke-dasharray="3 3"' if dot.high_ns is None else ""
    if high > low:
        ends = f'x1="{low:.2f}%" x2="{high:.2f}%" y1="{y:.1f}" y2="{y:.1f}"'
        yield f'<line class="ps-reach" stroke="{dot.color}" {ends}{dashes}/>'
    if dot.ring:
        yield f'<circle class="ps-ring" cx="{place:.2f}%" cy="{y:.1f}" r="9"/>'
    title = escape(sanitize(dot.title))
    yield f'<circle cx="{place:.2f}%" cy="{y:.1f}" r="5" fill="{dot.color}"><title>{title}</title></circle>'
    if dot.label:
        left = place > (_LEFT + _RIGHT) / 2
        anchor, dx = ("end", -12) if left else ("start", 12)
        yield (
            f'<text class="ps-said" x="{place:.2f}%" dx="{dx}" y="{y - 6:.1f}" text-anchor="{anchor}">'
            f"{escape(sanitize(dot.label))}</text>"
        )


def _text(x: str, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def key(colors: dict[str, str]) -> str:
    """Legend of the colours; ``''`` if there is only one."""
    if len(colors) < 2:
        return ""
    items = "".join(
        f'<li><svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="5" fill="{color}"/></svg> '
        f"{escape(sanitize(name))}</li>"
        for name, color in colors.items()
    )
    return f'<ul class="ps-key">{items}</ul>'


# Pictures of a comparison: the change of the step from part to part, and launches one by one. Worse and better differ
# in colour, direction and the sign of the printed number.


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


def fall_bar(row: Fall, axis: tuple[float, float]) -> str:
    """One row as a bar on the shared axis."""
    left, right = axis

    def at(ns: float) -> float:
        return WIDE * min(max((ns - left) / (right - left), 0.0), 1.0)

    first, last = sorted((at(row.start_ns), at(row.end_ns)))
    if row.whole:
        first, color = 0.0, BASE if row.name == "base" else HEAD
    else:
        color = WORSE if row.delta_ns > 0 else BETTER
    title = f"{sanitize(row.name)}: {format_ns(row.end_ns) if row.whole else signed_ns(row.delta_ns)}"
    bar = rect(first, 12, max(last - first, 2), 76, color)
    line = rect(max(at(row.end_ns) - 1, 0), 0, 2, HIGH, "currentColor", opacity=0.5)
    return stretched("fall", title, bar + line)


def waterfall(base_ns: int, head_ns: int, changes: Sequence[tuple[str, int]]) -> str:
    """Rows from base to head as HTML, each with its name and change."""
    rows = falls(base_ns, head_ns, changes)
    axis = axis_of(rows)
    drawn = "".join(
        f'<div class="fall"><div>{escape(sanitize(row.name))}</div>{fall_bar(row, axis)}'
        f'<div class="n">{escape(format_ns(row.end_ns) if row.whole else signed_ns(row.delta_ns))}</div></div>'
        for row in rows
    )
    begins = f'<p class="note">The axis begins at {escape(format_ns(axis[0]))}, not at zero.</p>' if axis[0] > 0 else ""
    return drawn + begins


def launches_picture(launches: Sequence[Launch]) -> str:
    """The chart of launches as HTML with its legend and ends; ``''`` if no launch has a time."""
    chart = launches_chart(launches)
    if chart is None:
        return ""
    drawn, low, high = chart
    sides = "".join(f"<span>{swatch(color)} {name}</span>" for name, color in (("base", BASE), ("head", HEAD)))
    phases = dict.fromkeys(sanitize(launch.phase) for launch in launches if launch.ns is not None)
    return (
        f'<div class="legend">{sides}<span>a column per pair of launches, in order</span></div>'
        f'<div class="ends"><span>slowest {format_ns(high)}</span></div>{drawn}'
        f'<div class="ends"><span>fastest {format_ns(low)}</span><span>{escape(", then ".join(phases))}</span></div>'
    )


def launches_chart(launches: Sequence[Launch]) -> tuple[str, float, float] | None:
    """(picture, fastest, slowest) in ns: each pair of launches in its order, base and head joined by a line."""
    kept = [launch for launch in launches if launch.ns is not None]
    if not kept:
        return None
    values = [launch.ns for launch in kept if launch.ns is not None]
    low, high = min(values), max(values)
    pairs = list(dict.fromkeys((launch.phase, launch.pair) for launch in kept))
    slot = WIDE / len(pairs)
    radius = min(9.0, max(2.5, 0.3 * slot))

    def height(ns: float) -> float:
        return 240 - 220 * ((ns - low) / (high - low) if high > low else 0.5)

    shapes = []
    phases = [phase for phase, _ in pairs]
    for number, (phase, pair) in enumerate(pairs):
        x = slot * (number + 0.5)
        if number and phases[number - 1] != phase:
            shapes.append(rect(slot * number, 0, 1.5, 260, "currentColor", opacity=0.4))
        members = [launch for launch in kept if (launch.phase, launch.pair) == (phase, pair)]
        ends = [height(member.ns) for member in members if member.ns is not None]
        shapes.append(rect(x - 0.75, min(ends), 1.5, max(ends) - min(ends), "currentColor", opacity=0.3))
        for member in members:
            color = BASE if member.arm == "base" else HEAD
            title = f"{member.arm}, {sanitize(phase)} {pair}: {format_ns(member.ns or 0)}"
            shapes.append(
                f'<circle cx="{x:.1f}" cy="{height(member.ns or 0):.1f}" r="{radius:.1f}" fill="{color}">'
                f"<title>{escape(title)}</title></circle>"
            )
    words = f"{len(kept)} launches in {len(pairs)} pairs, {format_ns(low)} to {format_ns(high)}"
    drawn = (
        f'<svg class="ps-launches" role="img" aria-label="{escape(words)}" viewBox="0 0 {WIDE} 260"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
    )
    return drawn, low, high
