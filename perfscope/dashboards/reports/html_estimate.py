"""Modelled time in the HTML report: the range, lines, the streams as a picture, instructions and assumptions folded."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.html_findings import card
from perfscope.dashboards.reports.html_programs import cells_table
from perfscope.dashboards.reports.svg import swatch
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.analyzers.estimate import StreamPicture
    from perfscope.dashboards.reports.estimate_rows import EstimateView, ProgramView

FIRST_LINES = 8
"""Source lines that stand open."""

_COLORS = {"compute": "#3b78c9", "communication": "#c98714", "copy": "#7a8793"}
_WORDS = {"compute": "compute", "communication": "collectives", "copy": "copies"}

_LANE, _GAP, _X = 18, 6, 1000
"""Height of a stream and the space below it; units across."""


def estimate_card(view: EstimateView) -> str:
    """The section's card."""
    return card(view.title, "".join(_body(view)))


def _body(view: EstimateView) -> Iterator[str]:
    for program in view.programs:
        yield from _program(program)
    if view.programs_left:
        yield f'<p class="note">and {view.programs_left:,} more programs, which take less</p>'
    yield from (f'<p class="note">{escape(_sentence(note))}</p>' for note in view.notes)
    if view.assumptions:
        yield _folded("what is assumed", _list(view.assumptions))
    if view.blind_spots:
        yield _folded("what is not in it", _list(view.blind_spots))


def _program(view: ProgramView) -> Iterator[str]:
    yield f"<p><b>{escape(view.title)}</b>: {escape(view.summary.removeprefix(f'{view.title}: '))}.</p>"
    if view.warnings or view.errors:
        yield _list((*view.warnings, *view.errors))
    yield f'<p class="note">{escape(" ".join(map(_sentence, view.facts)))}</p>'
    yield from map(picture, view.pictures)
    if view.lines:
        yield cells_table(view.lines[:FIRST_LINES])
    if view.lines[FIRST_LINES:]:
        rest = view.lines[FIRST_LINES:]
        left = f'<p class="note">and {view.lines_left:,} more</p>' if view.lines_left else ""
        yield _folded(f"{len(rest)} more lines", cells_table(rest) + left)
    if view.instructions:
        left = f'<p class="note">and {view.instructions_left:,} more</p>' if view.instructions_left else ""
        yield _folded("instructions", cells_table(view.instructions) + left)
    if view.error_groups:
        rows = cells_table(view.error_groups) + (cells_table(view.error_rows) if view.error_rows else "")
        yield _folded("measured against modelled", rows)


def picture(view: StreamPicture) -> str:
    """What runs beside what at the high end of the range; a loop in it is one stretch."""
    streams = list(dict.fromkeys(span.stream for span in sorted(view.spans, key=lambda one: one.stream != "compute")))
    whole = max(1, view.length_ns)
    shapes = []
    for span in view.spans:
        x, width = span.start * _X / whole, max(0.6, (span.end - span.start) * _X / whole)
        y = streams.index(span.stream) * (_LANE + _GAP)
        turns = f", {span.repeats:,} turns" if span.repeats > 1 else ""
        words = f"{sanitize(span.label)}: {format_ns(span.end - span.start)}{turns}"
        shapes.append(
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_LANE}" fill="{_COLORS[span.kind]}" '
            f'fill-opacity="{0.55 if span.repeats > 1 else 0.9}"><title>{escape(words)}</title></rect>'
        )
    height = len(streams) * (_LANE + _GAP)
    kinds = dict.fromkeys(span.kind for span in view.spans)
    keys = "".join(f"<span>{swatch(_COLORS[kind])} {_WORDS[kind]}</span>" for kind in kinds)
    names = ", ".join(map(sanitize, streams))
    what = f"one of {view.turns:,} turns of {sanitize(view.of)}" if view.of else "one run, loops paler"
    left = f"; {view.left:,} short stretches are not drawn" if view.left else ""
    return (
        f'<div class="legend"><span>{escape(what)}</span>{keys}<span>{escape(f"top to bottom: {names}{left}")}</span>'
        f'</div><svg class="ps-streams" role="img" aria-label="{escape(f"{what}: streams {names}")}" width="100%" '
        f'height="{height}" viewBox="0 0 {_X} {height}" preserveAspectRatio="none" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
        f'<div class="ends"><span>0</span><span>{escape(format_ns(view.length_ns))}, the high end</span></div>'
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _list(said: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in said)}</ul>"


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
