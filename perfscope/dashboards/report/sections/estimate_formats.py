"""Modelled time in the JSON report."""

from __future__ import annotations

from dataclasses import asdict
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.html_findings import card
from perfscope.dashboards.report.markdown_text import escape, in_html
from perfscope.dashboards.report.sections.estimate import largest
from perfscope.dashboards.report.sections.program_formats import cells_table, html_cells_table
from perfscope.dashboards.report.svg import swatch
from perfscope.dashboards.report.text_tables import fitting, hanging, table_of
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.predict import Estimate, Row, StreamPicture
    from perfscope.analyzers.predict.calibrate import Calibration, InstructionError
    from perfscope.analyzers.sections.programs import EstimateSection, ProgramTime
    from perfscope.dashboards.report.sections.estimate import Cells, EstimateView, ProgramView


def estimate_document(section: EstimateSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns, ranges ``{"low", "high"}``."""
    return {
        "programs": [_program(one) for one in section.programs],
        "left": section.programs_left,
        "step": None if section.step is None else asdict(section.step),
        "problems": list(section.problems),
    }


def _program(one: ProgramTime) -> dict[str, Any]:
    return {
        "program": one.label,
        "known_by": "modelled",
        "calls": one.calls,
        **_estimate(one.estimate),
        "lines": [asdict(line) for line in one.lines],
        "lines_left": one.lines_left,
        "instructions": [_row(row) for row in one.estimate.rows],
        "instructions_left": one.rows_left,
        "calibration": None if one.calibration is None else _calibration(one.calibration),
    }


def _estimate(found: Estimate) -> dict[str, Any]:
    return {
        "target": found.target.shown,
        "step_ns": asdict(found.step_ns),
        "parts_ns": {"low": asdict(found.parts[0]), "high": asdict(found.parts[1])},
        "launches": found.launches,
        "host_ns": asdict(found.host_ns),
        "host_bound": found.host_bound,
        "mfu": None if found.mfu is None else list(found.mfu),
        "hfu": None if found.hfu is None else list(found.hfu),
        "peak_bytes": found.peak_bytes,
        "memory_bytes": found.memory_bytes,
        "fits": found.fits,
        "assumptions": [asdict(one) for one in found.assumptions],
        "blind_spots": list(found.blind_spots),
        "lower_bounds": list(found.lower_bounds),
        "not_known": len(found.not_known),
    }


def _row(row: Row) -> dict[str, Any]:
    return {**asdict(row), "total": asdict(row.total)}


def _calibration(found: Calibration) -> dict[str, Any]:
    return {
        "matched": found.matched,
        "differences": list(found.differences),
        "measured_ns": found.run.step_ns,
        "measured_busy_ns": found.run.busy_ns,
        "runs": found.run.runs,
        "devices": found.run.devices,
        "inside": found.inside,
        "calibrated_ns": asdict(found.calibrated),
        "groups": [asdict(one) for one in found.groups],
        "instructions": [_error(one) for one in found.instructions],
        "not_measured": found.not_measured,
        "priced_by_group": found.by_group,
    }


def _error(one: InstructionError) -> dict[str, Any]:
    return {
        "computation": one.row.computation,
        "name": one.row.name,
        "group": one.group,
        "runs": one.row.runs,
        "measured_ns": one.measured_ns,
        "modelled_ns": asdict(one.row.once),
        "off_ns": one.off_ns,
        "inside": one.inside,
    }


# Modelled time on a terminal: short by default, instructions, assumptions and blind spots with ``-v``.


FEW_PROGRAMS = 2
"""Programs without ``-v``."""

FEW_LINES = 6
"""Lines of a program without ``-v``; the JSON report holds twenty."""

MOST_ROWS = 12
"""Rows of each list with ``-v``."""

_GIVE_WAY = ("instructions", "at", "runs", "each", "bound by", "share")
"""Columns that go, in this order, where the terminal is too narrow."""


def estimate_section(view: EstimateView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """The range of each program, where its time goes, and what the range leaves out. Ends with an empty line."""
    yield f"  {view.title}, a range: the vendor's peaks to what kernels usually reach"
    programs = view.programs if verbose else view.programs[:FEW_PROGRAMS]
    for program in programs:
        yield from _program_estimate_text(program, width, verbose=verbose)
    left = view.programs_left + len(view.programs) - len(programs)
    if left:
        yield f"    and {left:,} more programs, which take less"
    yield from map(hanging, view.notes)
    if verbose:
        yield from (hanging(f"assumed: {text}") for text in view.assumptions)
        yield from (hanging(f"not in it: {text}") for text in view.blind_spots)
    elif view.programs:
        yield hanging("assumptions and what is not in it: -v")
    yield ""


def _program_estimate_text(view: ProgramView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield hanging(view.summary)
    yield from map(hanging, view.warnings)
    yield from map(hanging, view.facts)
    yield from map(hanging, view.errors)
    lines = view.lines[: MOST_ROWS if verbose else FEW_LINES]
    if lines:
        yield _table(lines, width)
        left = view.lines_left + len(view.lines) - len(lines)
        if left:
            yield f"    and {left:,} more lines"
    if verbose and view.instructions:
        yield ""
        yield _table(view.instructions[:MOST_ROWS], width)
        left = view.instructions_left + max(0, len(view.instructions) - MOST_ROWS)
        if left:
            yield f"    and {left:,} more instructions"
    if verbose and view.error_groups:
        yield ""
        yield "  measured against modelled"
        yield _table(view.error_groups, width)
        yield _table(view.error_rows[:MOST_ROWS], width)


def _table(rows: Sequence[Cells], width: int) -> RenderableType:
    return table_of(fitting([dict(cells) for cells in rows], _GIVE_WAY, width))


# Modelled time in a comment on a pull request: all of it folded below one line.


MOST_PROGRAMS = 3
"""Programs in a comment: an overview, the other formats hold all."""

MOST_LINES = 8


def estimate_details(view: EstimateView) -> str:
    """A folded block; its summary is the range of the first program."""
    summary = in_html(view.headline or view.title)
    return "\n".join([f"<details><summary>{summary}</summary>\n", *_body(view), "</details>"])


def _body(view: EstimateView) -> Iterator[str]:
    for program in view.programs[:MOST_PROGRAMS]:
        yield from _program_estimate_markdown(program)
    left = view.programs_left + max(0, len(view.programs) - MOST_PROGRAMS)
    if left:
        yield f"- and {left:,} more programs"
    yield from (f"- {escape(note)}" for note in view.notes)
    if view.blind_spots:
        yield f"- not in it: {escape('; '.join(view.blind_spots))}"
    yield ""


def _program_estimate_markdown(program: ProgramView) -> Iterator[str]:
    yield f"{escape(program.summary)}; {escape(largest(program))}\n" if program.lines else escape(program.summary)
    yield from (f"- {escape(text)}" for text in (*program.warnings, *program.facts, *program.errors))
    yield ""
    if program.lines:
        yield cells_table(program.lines[:MOST_LINES])


# Modelled time in the HTML report: the range, lines, the streams as a picture, instructions and assumptions folded.


FIRST_LINES = 8
"""Source lines that stand open."""

_COLORS = {"compute": "#3b78c9", "communication": "#c98714", "copy": "#7a8793"}
_WORDS = {"compute": "compute", "communication": "collectives", "copy": "copies"}

_LANE, _GAP, _X = 18, 6, 1000
"""Height of a stream and the space below it; units across."""


def estimate_card(view: EstimateView) -> str:
    """The section's card."""
    return card(view.title, "".join(_body_html_estimate(view)))


def _body_html_estimate(view: EstimateView) -> Iterator[str]:
    for program in view.programs:
        yield from _program_html_estimate(program)
    if view.programs_left:
        yield f'<p class="note">and {view.programs_left:,} more programs, which take less</p>'
    yield from (f'<p class="note">{escape_html(_sentence(note))}</p>' for note in view.notes)
    if view.assumptions:
        yield _folded("what is assumed", _list(view.assumptions))
    if view.blind_spots:
        yield _folded("what is not in it", _list(view.blind_spots))


def _program_html_estimate(view: ProgramView) -> Iterator[str]:
    yield f"<p><b>{escape_html(view.title)}</b>: {escape_html(view.summary.removeprefix(f'{view.title}: '))}.</p>"
    if view.warnings or view.errors:
        yield _list((*view.warnings, *view.errors))
    yield f'<p class="note">{escape_html(" ".join(map(_sentence, view.facts)))}</p>'
    yield from map(picture, view.pictures)
    if view.lines:
        yield html_cells_table(view.lines[:FIRST_LINES])
    if view.lines[FIRST_LINES:]:
        rest = view.lines[FIRST_LINES:]
        left = f'<p class="note">and {view.lines_left:,} more</p>' if view.lines_left else ""
        yield _folded(f"{len(rest)} more lines", html_cells_table(rest) + left)
    if view.instructions:
        left = f'<p class="note">and {view.instructions_left:,} more</p>' if view.instructions_left else ""
        yield _folded("instructions", html_cells_table(view.instructions) + left)
    if view.error_groups:
        rows = html_cells_table(view.error_groups) + (html_cells_table(view.error_rows) if view.error_rows else "")
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
            f'fill-opacity="{0.55 if span.repeats > 1 else 0.9}"><title>{escape_html(words)}</title></rect>'
        )
    height = len(streams) * (_LANE + _GAP)
    kinds = dict.fromkeys(span.kind for span in view.spans)
    keys = "".join(f"<span>{swatch(_COLORS[kind])} {_WORDS[kind]}</span>" for kind in kinds)
    names = ", ".join(map(sanitize, streams))
    what = f"one of {view.turns:,} turns of {sanitize(view.of)}" if view.of else "one run, loops paler"
    left = f"; {view.left:,} short stretches are not drawn" if view.left else ""
    return (
        f'<div class="legend"><span>{escape_html(what)}</span>{keys}'
        f"<span>{escape_html(f'top to bottom: {names}{left}')}</span>"
        f'</div><svg class="ps-streams" role="img" aria-label="{escape_html(f"{what}: streams {names}")}" width="100%" '
        f'height="{height}" viewBox="0 0 {_X} {height}" preserveAspectRatio="none" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
        f'<div class="ends"><span>0</span><span>{escape_html(format_ns(view.length_ns))}, the high end</span></div>'
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _list(said: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape_html(text)}</li>' for text in said)}</ul>"


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape_html(summary)}</summary>{body}</details>"
