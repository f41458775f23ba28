"""Draws bytes in use over time as inline SVG: areas by category, the peak marked, phases and steps below.

Areas are stretched to the width available; words are positioned relative to it but not stretched, so that they stay
readable on a phone. Labels of bytes are left of the picture, where the page leaves room for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from perfscope.dashboards.report.blocks import Areas, Band
from perfscope.dashboards.report.renderers.values import swatch
from perfscope.model.units import format_bytes
from perfscope.model.untrusted_text import sanitize

RESERVED_COLOR = "#5c6775"

_TOP, _PLOT, _BANDS, _WORDS = 24, 190, 16, 20
"""Heights in pixels: the peak's label, the areas, a strip of phases or steps, the labels below."""

_X, _Y = 2000, 1000
"""Width and height of the stretched areas, in units."""

ROOM_ABOVE = 1.04
"""Upper edge relative to the highest value: a peak at the edge would look cut off."""

NEAR = 1.5
"""The device's size is drawn if use comes within this factor of it; otherwise it would flatten all areas."""

PLOT_LEAST = 400
"""A category below the peak divided by this is under half a pixel high and has no entry in the legend."""

FEW_NUMBERS = 4
"""Most step numbers below the areas: that many fit side by side on a phone, even as ``step 12345``."""

NUMBER = 0.24
"""Part of the width that such a label takes on a phone."""

TOP_SHARE = 0.85
"""Labels above this part of the height would touch the label of the device's size."""


def areas_html(picture: Areas) -> str:
    """The whole chart with its legend."""
    whole = _TOP + _PLOT + (_BANDS if picture.phases else 0) + (_BANDS if picture.steps else 0) + _WORDS
    inner = (
        f'<svg x="0" y="{_TOP}" width="100%" height="{_PLOT}" viewBox="0 0 {_X} {_Y}" preserveAspectRatio="none">'
        f"{''.join(_areas(picture))}</svg>"
    )
    return (
        f'<svg class="ps-memory" role="img" aria-label="{_text(picture.words)}" width="100%"'
        f' height="{whole}"'
        f' xmlns="http://www.w3.org/2000/svg">{inner}{"".join(_lines(picture))}{"".join(_below(picture))}'
        f'{_peak(picture)}</svg><div class="legend">{legend(picture)}</div>'
    )


def legend(picture: Areas) -> str:
    """The colours in words, in the order of the areas from top to bottom, then those of the strip below."""
    least = picture.peak_bytes / PLOT_LEAST
    keys = [(area.color, area.name) for area in reversed(picture.areas) if max(area.bytes) >= least]
    if picture.reserved is not None:
        keys.insert(0, (RESERVED_COLOR, "reserved (line)"))
    phases = list(dict.fromkeys((phase.color, phase.name) for phase in picture.phases))
    below = f"<span>below:</span>{_keys(phases)}" if phases else ""
    return f"{_keys(keys)}{below}"


def _keys(keys: Sequence[tuple[str, str]]) -> str:
    return "".join(f"<span>{swatch(color)} {_text(words)}</span>" for color, words in keys)


def ceiling(picture: Areas) -> float:
    """Bytes at the upper edge."""
    highest = max([picture.peak_bytes, *(picture.reserved or ())])
    if picture.capacity_bytes is not None and picture.capacity_bytes <= NEAR * highest:
        highest = max(highest, picture.capacity_bytes)
    return highest * ROOM_ABOVE


def _areas(picture: Areas) -> Iterator[str]:
    """Areas stacked by drawing the highest sum first and each lower sum over it."""
    top = ceiling(picture)
    positions = [round(_X * place) for place in (*picture.places, 1.0)]
    sums = [[0] * len(picture.places)]
    for area in picture.areas:
        sums.append([below + here for below, here in zip(sums[-1], area.bytes, strict=True)])
    for area, heights in zip(reversed(picture.areas), reversed(sums[1:]), strict=True):
        most = f"{area.name}: at most {format_bytes(max(area.bytes))}"
        yield f'<path d="{_steps(positions, heights, top, closed=True)}" fill="{area.color}"><title>{_text(most)}'
        yield "</title></path>"
    if picture.reserved is not None:
        path = _steps(positions, picture.reserved, top, closed=False)
        yield f'<path class="ps-line" d="{path}" fill="none" stroke="{RESERVED_COLOR}"><title>reserved: at most '
        yield f"{format_bytes(max(picture.reserved))}</title></path>"


def _steps(places: Sequence[int], heights: Sequence[int], top: float, *, closed: bool) -> str:
    """An SVG path along a step function; ``closed``: extended to the ground at both ends."""
    levels = [round(_Y - _Y * height / top) for height in heights]
    path = [f"M{places[0]} {_Y}V{levels[0]}" if closed else f"M{places[0]} {levels[0]}"]
    path += [
        f"H{places[index]}V{levels[index]}" for index in range(1, len(levels)) if levels[index] != levels[index - 1]
    ]
    path.append(f"H{places[-1]}" + (f"V{_Y}Z" if closed else ""))
    return "".join(path)


def _lines(picture: Areas) -> Iterator[str]:
    """Lines at round numbers of bytes, at the device's size, and between steps."""
    top = ceiling(picture)
    step = 1
    while step * 4 < top:
        step *= 2
    for number in range(1, 4):
        if step * number < TOP_SHARE * top:
            yield _across(_height(step * number, top), format_bytes(step * number), "ps-grid")
    if picture.capacity_bytes is not None and picture.capacity_bytes <= top:
        height = _height(picture.capacity_bytes, top)
        yield _across(height, format_bytes(picture.capacity_bytes), "ps-full")
        x, anchor = ("100%", "end") if picture.peak_place < 0.5 else ("0", "start")  # must not touch the peak's line
        yield f'<text x="{x}" y="{height - 4:.1f}" text-anchor="{anchor}">size of the device</text>'
    for band in picture.steps[1:]:
        text = f"{100 * band.start:.2f}%"
        yield f'<line class="ps-grid" x1="{text}" x2="{text}" y1="{_TOP}" y2="{_TOP + _PLOT}"/>'


def _height(bytes_: float, top: float) -> float:
    return _TOP + _PLOT * (1 - bytes_ / top)


def _across(height: float, words: str, kind: str) -> str:
    return (
        f'<line class="{kind}" x1="0" x2="100%" y1="{height:.1f}" y2="{height:.1f}"/>'
        f'<text x="-6" y="{height + 4:.1f}" text-anchor="end">{_text(words)}</text>'
    )


def _below(picture: Areas) -> Iterator[str]:
    y = _TOP + _PLOT + 3
    if picture.phases:
        for band in picture.phases:
            yield _strip(band, y, band.color)
        y += _BANDS
    if picture.steps:
        yield from _numbers(picture.steps, y + 10)
        y += _BANDS
    yield f'<text x="0" y="{y + 13}">{_text(picture.begins)}</text>'
    yield f'<text x="100%" y="{y + 13}" text-anchor="end">{_text(picture.ends)}</text>'


def _numbers(steps: Sequence[Band], y: int) -> Iterator[str]:
    """Step numbers: with few steps centred, with many every n-th where its step begins; labels never overlap."""
    every = -(-len(steps) // FEW_NUMBERS)
    few = every == 1
    behind = 0.0
    for band in steps[::every]:
        middle = min(max((band.start + band.end) / 2, NUMBER / 2), 1 - NUMBER / 2)
        begins = middle - NUMBER / 2 if few else band.start
        if behind <= begins <= 1 - NUMBER:
            x, anchor = (middle, "middle") if few else (begins, "start")
            yield f'<text x="{100 * x:.2f}%" y="{y}" text-anchor="{anchor}">step {_text(band.name)}</text>'
            behind = begins + NUMBER


def _strip(band: Band, y: int, color: str) -> str:
    width = max(100 * (band.end - band.start), 0.1)
    return (
        f'<rect x="{100 * band.start:.2f}%" y="{y}" width="{width:.2f}%" height="{_BANDS - 6}" fill="{color}">'
        f"<title>{_text(band.name)}</title></rect>"
    )


def _peak(picture: Areas) -> str:
    x, y = f"{100 * picture.peak_place:.2f}%", _height(picture.peak_bytes, ceiling(picture))
    anchor = "start" if picture.peak_place < 0.25 else "end" if picture.peak_place > 0.75 else "middle"
    return (
        f'<line class="ps-peak" x1="{x}" x2="{x}" y1="18" y2="{_TOP + _PLOT}"/>'
        f'<circle class="ps-peak" cx="{x}" cy="{y:.1f}" r="4"/>'
        f'<text class="ps-said" x="{x}" y="13" text-anchor="{anchor}">'
        f"peak {_text(format_bytes(picture.peak_bytes))}</text>"
    )


def _text(words: str) -> str:
    return escape(sanitize(words))
