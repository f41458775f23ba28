"""Draws charts as inline SVG that stretches to the width of the page.

Shapes are stretched; words are HTML, or text at a fraction of the width, so that they stay readable on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from math import ceil, inf, log, log2

from perfscope.dashboards.report.blocks import Areas, Axis, Box, Chart, Dot, Lane, Lanes, Legend, Plot
from perfscope.dashboards.report.renderers.areas import areas_html
from perfscope.dashboards.report.renderers.values import swatch
from perfscope.model.units import format_bytes, format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

WIDE, HIGH = 1000, 100
"""Width and height of stretched shapes, in their own units."""
THIN = 2
"""Least width of a bar, in the same units."""
STRIP_PX = 120
"""Height of a plot without ticks."""
TOP_PX, BOTTOM_PX, PLOT_PX = 24, 270, 304
"""A plot with ticks: upper and lower edge, and its height."""
LEFT, RIGHT = 13.0, 96.0
"""Its edges, in percent of the width."""
MOST_TICKS = 5


def chart_html(chart: Chart) -> str:
    """A chart with its legend and the texts around it."""
    if isinstance(chart, Plot):
        title = f"<h3>{_text(chart.title)}</h3>" if chart.title else ""
        note = f'<p class="note">{escape(sanitize(chart.note, TEXT_LIMIT))}</p>' if chart.note else ""
        head = f"{title}{note}{legend_html(chart.legend)}{_ends(chart.above)}"
        return f"{head}{_plot(chart)}{_ends(chart.below)}"
    if isinstance(chart, Areas):
        return areas_html(chart)
    drawn, colors = "".join(lane_html(chart, lane) for lane in chart.lanes), legend_html(chart.legend)
    parts = (drawn, colors) if chart.legend.is_below else (colors, drawn)
    return "".join((*parts, _ends(chart.below)))


def legend_html(legend: Legend) -> str:
    """Colours and their meaning; ``''`` without any."""
    if not legend.entries:
        return ""
    shown = "".join(
        f"<span>{swatch(color)} {_text(words)}</span>" if color else f"<span>{_text(words)}</span>"
        for words, color in legend.entries
    )
    return f'<div class="legend{" below" * legend.is_below}">{shown}</div>'


def lane_html(lanes: Lanes, lane: Lane) -> str:
    """A row: its name, its bars and its amount."""

    def place(value: float) -> float:
        share = (value - lanes.start) / (lanes.end - lanes.start) if lanes.end > lanes.start else 0.0
        return WIDE * min(max(share, 0.0), 1.0)

    shapes = [rect(place(box.start), 0, max(place(box.end) - place(box.start), THIN), HIGH, box) for box in lane.boxes]
    if lane.mark is not None:
        mark = Box(start=0, end=0, color="currentColor", opacity=0.5)
        shapes.append(rect(max(place(lane.mark) - 1, 0), 0, THIN, HIGH, mark))
    drawn = stretched("lane", lane.words, "".join(shapes))
    if not lane.name:
        return f'<div class="lane bare">{drawn}</div>'
    amount = f'<div class="n">{_text(lane.amount)}</div>' if lane.amount else ""
    return f'<div class="lane{" fall" * bool(amount)}"><div>{_text(lane.name)}</div>{drawn}{amount}</div>'


def share_bar(share: float) -> str:
    """A share of 0 to 1 as a bar of a table, next to the number."""
    box = Box(start=0, end=0, color="#3f7fd6")
    return stretched("share", "", rect(0, 0, WIDE * min(max(share, 0.0), 1.0), HIGH, box))


def rect(x: float, y: float, width: float, height: float, box: Box) -> str:
    """A rectangle with the colour and title of a box."""
    faint = f' fill-opacity="{box.opacity}"' if box.opacity < 1 else ""
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{box.color}"{faint}'
    return f"<rect {place}><title>{_text(box.title)}</title></rect>" if box.title else f"<rect {place}/>"


def stretched(kind: str, words: str, shapes: str) -> str:
    """Shapes in ``WIDE`` times ``HIGH`` units, stretched to the room available."""
    known = f'role="img" aria-label="{_text(words)}"' if words else 'aria-hidden="true"'
    return (
        f'<svg class="ps-{kind}" {known} viewBox="0 0 {WIDE} {HIGH}"'
        f' preserveAspectRatio="none" xmlns="http://www.w3.org/2000/svg">{shapes}</svg>'
    )


def _text(words: str) -> str:
    return escape(sanitize(words))


def _ends(texts: Sequence[str]) -> str:
    return f'<div class="ends">{"".join(f"<span>{_text(text)}</span>" for text in texts)}</div>' if texts else ""


class _Place:
    """Where values of a plot lie: ``x`` in percent of the width, ``y`` in pixels."""

    def __init__(self, plot: Plot) -> None:
        self._plot = plot
        ticked = bool(plot.x.unit or plot.y.unit)
        self.left, self.right = (LEFT, RIGHT) if ticked else (0.6, 99.4)
        self.top, self.bottom = (TOP_PX, BOTTOM_PX) if ticked else (8, STRIP_PX - 8)
        self.height = PLOT_PX if ticked else STRIP_PX

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * min(max(_share(self._plot.x, value), 0.0), 1.0)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * _share(self._plot.y, value)


def _plot(plot: Plot) -> str:
    place = _Place(plot)
    shapes = "".join((*_ticks(plot, place), *_stretched_shapes(plot, place), *_dots(plot.dots, place)))
    return (
        f'<svg class="ps-plot" role="img" aria-label="{_text(plot.words)}" height="{place.height}" width="100%"'
        f' xmlns="http://www.w3.org/2000/svg">{shapes}</svg>'
    )


def _ticks(plot: Plot, place: _Place) -> Iterator[str]:
    for size in _round_values(plot.y):
        yield f'<line class="ps-grid" x1="{place.left}%" x2="100%" y1="{place.y(size):.1f}" y2="{place.y(size):.1f}"/>'
        yield _label(f"{place.left - 1}%", place.y(size) + 4, _amount(plot.y, size), "end")
    for value in _round_values(plot.x):
        x = f"{place.x(value):.2f}%"
        yield f'<line class="ps-grid" x1="{x}" x2="{x}" y1="{place.top}" y2="{place.bottom}"/>'
        yield _label(x, place.bottom + 18, _amount(plot.x, value), "middle")
    for height, name in plot.limits:
        y = place.y(height)
        yield f'<line class="ps-limit" x1="{place.left}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _label("100%", y - 5, f"{name}: {_amount(plot.y, height)}", "end")


def _stretched_shapes(plot: Plot, place: _Place) -> Iterator[str]:
    """Bars and lines, in units that are stretched: a polyline takes no percentages."""
    if not plot.boxes and not plot.lines:
        return
    shapes: list[str] = []
    for box in plot.boxes:
        x, end, y = place.x(box.start), place.x(box.end), place.y(box.top)
        shapes.append(rect(10 * x, y, max(10 * (end - x), 0.5), place.bottom - y, box))
    for line in plot.lines:
        points = " ".join(f"{10 * place.x(x):.1f},{place.y(y):.1f}" for x, y in line.points)
        shapes.append(f'<polyline class="{line.kind}" stroke="{line.color}" points="{points}"/>')
    yield (
        f'<svg width="100%" height="{place.height}" viewBox="0 0 {WIDE} {place.height}" preserveAspectRatio="none">'
        f"{''.join(shapes)}</svg>"
    )


def _dots(dots: Iterable[Dot], place: _Place) -> Iterator[str]:
    for dot in dots:
        x, y = place.x(dot.x), place.y(dot.y)
        low = x if dot.low is None else place.x(dot.low)
        high = x if dot.high is None else place.right if dot.high == inf else place.x(dot.high)
        if high > low:
            dashes = ' stroke-dasharray="3 3"' if dot.high == inf else ""
            ends = f'x1="{low:.2f}%" x2="{high:.2f}%" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line class="ps-reach" stroke="{dot.color}" {ends}{dashes}/>'
        if dot.ring:
            yield f'<circle class="ps-ring" cx="{x:.2f}%" cy="{y:.1f}" r="9"/>'
        title = f"<title>{_text(dot.title)}</title>" if dot.title else ""
        yield f'<circle cx="{x:.2f}%" cy="{y:.1f}" r="5" fill="{dot.color}">{title}</circle>'
        if dot.label:
            anchor, dx = ("end", -12) if x > (place.left + place.right) / 2 else ("start", 12)
            yield (
                f'<text class="ps-said" x="{x:.2f}%" dx="{dx}" y="{y - 6:.1f}" text-anchor="{anchor}">'
                f"{_text(dot.label)}</text>"
            )


def _label(x: str, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}">{_text(words)}</text>'


def _amount(axis: Axis, value: float) -> str:
    if axis.unit == "bytes":
        return format_bytes(value)
    return format_ns(value) if value else "0"


def _share(axis: Axis, value: float) -> float:
    """Where a value lies between both ends, 0 to 1; in the middle if they are equal."""
    if axis.high <= axis.low:
        return 0.5
    if axis.logarithmic:
        return (log(max(value, 1)) - log(axis.low)) / (log(axis.high) - log(axis.low))
    return (value - axis.low) / (axis.high - axis.low)


def _round_values(axis: Axis) -> list[float]:
    """About ``MOST_TICKS`` round values at most; none without a unit."""
    if not axis.unit:
        return []
    binary = axis.unit == "bytes"
    if axis.logarithmic:
        steps = [2**power for power in range(63)] if binary else [n * 10**k for k in range(18) for n in (1, 2, 5)]
        inside = [float(value) for value in steps if axis.low <= value <= axis.high]
        return inside[:: max(1, ceil(len(inside) / MOST_TICKS))]
    least = (axis.high - axis.low) / MOST_TICKS
    decimal = (n * 10.0**k for k in range(18) for n in (1, 2, 5))
    step = 2.0 ** ceil(log2(max(least, 1))) if binary else next(value for value in decimal if value >= least)
    first = ceil(axis.low / step)
    return [step * index for index in range(first, int(axis.high / step) + 1)]
