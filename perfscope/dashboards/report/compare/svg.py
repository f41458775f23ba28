"""Pictures of a comparison: the change of the step from part to part, launches one by one.

Shapes only: the words and numbers stand beside them in HTML, where a phone can read them. Worse and better differ in
colour, in direction and in the sign of the number beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.report.renderers.values import BETTER, WORSE, signed_ns
from perfscope.dashboards.report.svg import swatch
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.model.documents.comparison import Launch


BASE, HEAD = "#6f7c8f", "#e0892b"

STYLE = """
.ps-fall{display:block;width:100%;height:20px;color:var(--ink)}
.ps-launches{display:block;width:100%;height:auto;color:var(--ink)}
.fall{display:grid;grid-template-columns:minmax(0,16em) minmax(0,1fr) 6.5em;gap:2px 14px;align-items:center;
padding:3px 0;font-size:13px}
.fall .n{font-variant-numeric:tabular-nums}
@media (max-width:640px){.fall{grid-template-columns:minmax(0,1fr) auto}.fall svg{grid-column:1/-1;grid-row:2}}
"""

_WIDTH = 1000
_FROM_ZERO = 0.5
"""Share of the largest level from which on an axis does not begin at zero: a change of 3% would be a hair."""
_PAD = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A row of a waterfall: from one level to the next, in ns; a whole (``base``, ``head``) begins at the axis."""

    name: str
    start_ns: int
    end_ns: int
    whole: bool = False

    @property
    def delta_ns(self) -> int:
        """ns that the step grew by here."""
        return self.end_ns - self.start_ns


def falls(base_ns: int, head_ns: int, changes: Sequence[tuple[str, int]]) -> list[Fall]:
    """Rows from base to head. ``ValueError`` unless the changes sum to the difference."""
    rows = [Fall(name="base", start_ns=0, end_ns=base_ns, whole=True)]
    level = base_ns
    for name, change in changes:
        rows.append(Fall(name=name, start_ns=level, end_ns=level + change))
        level += change
    if level != head_ns:
        raise ValueError(f"the changes lead to {level} ns, not to {head_ns}")
    return [*rows, Fall(name="head", start_ns=0, end_ns=head_ns, whole=True)]


def axis_of(rows: Sequence[Fall]) -> tuple[float, float]:
    """(left, right) of the axis in ns: from zero, unless all levels lie close together."""
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
        return _WIDTH * min(max((ns - left) / (right - left), 0.0), 1.0)

    first, last = sorted((at(row.start_ns), at(row.end_ns)))
    if row.whole:
        first, color = 0.0, BASE if row.name == "base" else HEAD
    else:
        color = WORSE if row.delta_ns > 0 else BETTER
    title = f"{sanitize(row.name)}: {format_ns(row.end_ns) if row.whole else signed_ns(row.delta_ns)}"
    bar = f'<rect x="{first:.1f}" y="12" width="{max(last - first, 2):.1f}" height="76" fill="{color}"/>'
    line = (
        f'<rect x="{max(at(row.end_ns) - 1, 0):.1f}" y="0" width="2" height="100" fill="currentColor" opacity="0.5"/>'
    )
    return (
        f'<svg class="ps-fall" role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH} 100"'
        f' preserveAspectRatio="none" xmlns="http://www.w3.org/2000/svg">{bar}{line}</svg>'
    )


def waterfall(base_ns: int, head_ns: int, changes: Sequence[tuple[str, int]]) -> str:
    """Rows from base to head as HTML, each with its name and its change."""
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
    """The chart of launches with its legend and its ends as HTML; ``''`` where no launch has a time."""
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
    slot = _WIDTH / len(pairs)
    radius = min(9.0, max(2.5, 0.3 * slot))

    def height(ns: float) -> float:
        return 240 - 220 * ((ns - low) / (high - low) if high > low else 0.5)

    shapes = []
    phases = [phase for phase, _ in pairs]
    for number, (phase, pair) in enumerate(pairs):
        x = slot * (number + 0.5)
        if number and phases[number - 1] != phase:
            line = f'<rect x="{slot * number:.1f}" width="1.5" height="260" fill="currentColor" opacity="0.4"/>'
            shapes.append(line)
        members = [launch for launch in kept if (launch.phase, launch.pair) == (phase, pair)]
        ends = [height(member.ns) for member in members if member.ns is not None]
        shapes.append(
            f'<rect x="{x - 0.75:.1f}" y="{min(ends):.1f}" width="1.5" height="{max(ends) - min(ends):.1f}"'
            ' fill="currentColor" opacity="0.3"/>'
        )
        for member in members:
            color = BASE if member.arm == "base" else HEAD
            title = f"{member.arm}, {sanitize(phase)} {pair}: {format_ns(member.ns or 0)}"
            shapes.append(
                f'<circle cx="{x:.1f}" cy="{height(member.ns or 0):.1f}" r="{radius:.1f}" fill="{color}">'
                f"<title>{escape(title)}</title></circle>"
            )
    words = f"{len(kept)} launches in {len(pairs)} pairs, {format_ns(low)} to {format_ns(high)}"
    drawn = (
        f'<svg class="ps-launches" role="img" aria-label="{escape(words)}" viewBox="0 0 {_WIDTH} 260"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
    )
    return drawn, low, high
