"""The modelled time of compiled programs as rows and sentences, decided once for every report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.markdown_text import escape, in_html
from perfscope.dashboards.report.sections.compile import counted
from perfscope.dashboards.report.sections.program import cells_table, html_cells_table
from perfscope.dashboards.report.svg import swatch
from perfscope.dashboards.report.text_tables import fitting, hanging, table_of
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.predict import Estimate, Parts, Range, Row, StreamPicture
    from perfscope.analyzers.predict.calibrate import Calibration, GroupError, InstructionError
    from perfscope.analyzers.predict.model import LineTime
    from perfscope.analyzers.sections.programs import EstimateSection, ProgramTime
    from perfscope.model.finding import Where


# Words for modelled ranges of time.


def range_text(found: Range) -> str:
    """``'1.20 to 3.41 ms'``; one number where both ends show alike."""
    low, high = format_ns(found.low), format_ns(found.high)
    if low == high:
        return high
    short = low.removesuffix(high[high.index(" ") :]) if low.endswith(high[high.index(" ") :]) else low
    return f"{short} to {high}"


def of_step(part: Range, step: Range) -> str:
    """``'12-31%'``: of the low end at the low end, of the high end at the high end, the smaller first."""
    shares = sorted(100 * value / whole for value, whole in ((part.low, step.low), (part.high, step.high)) if whole)
    if not shares:
        return "-"
    low, high = (f"{share:.0f}" for share in (shares[0], shares[-1]))
    return f"{high}%" if low == high else f"{low}-{high}%"


def times_text(measured: float, modelled: Range) -> str:
    """How far a measured time lies from the ends: ``'1.8x the low end, 0.9x the high end'``."""
    return f"{measured / max(1, modelled.low):.2f}x the low end, {measured / max(1, modelled.high):.2f}x the high end"


NAME_LIMIT = 36
"""Characters of an instruction in a table."""

PLACE_LIMIT = 40
"""Characters of a source line."""

NAMED = 3
"""Things named in a sentence."""

Cells = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramView:
    """One program on the target."""

    title: str
    summary: str
    """One line: the range, and on what."""
    facts: tuple[str, ...]
    """What the step is made of, launches, memory, utilization."""
    lines: tuple[Cells, ...]
    """The user's lines, the most time first."""
    lines_left: int
    instructions: tuple[Cells, ...]
    instructions_left: int
    warnings: tuple[str, ...]
    """Why the true time is longer than the range, or what does not fit."""
    errors: tuple[str, ...]
    """What a recording of the program says of the model; empty where there is none."""
    error_groups: tuple[Cells, ...]
    error_rows: tuple[Cells, ...]
    pictures: tuple[StreamPicture, ...]
    """The program and its longest loops, those with more than one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateView:
    """The whole section."""

    title: str
    headline: str
    """The one sentence that stands with the facts on the whole."""
    tile: tuple[str, str, str] | None
    """Name, value and note of the number at the top; None where no time is known."""
    programs: tuple[ProgramView, ...]
    programs_left: int
    assumptions: tuple[str, ...]
    blind_spots: tuple[str, ...]
    notes: tuple[str, ...]


def estimate_view(section: EstimateSection) -> EstimateView | None:
    """The section as rows; ``None`` where no program was compiled for a target and nothing went wrong."""
    if not section.programs and not section.problems:
        return None
    targets = list(dict.fromkeys(program.estimate.target.shown for program in section.programs))
    notes = [*section.problems]
    if section.step is not None:
        parts = sum(count is not None for count in section.step.calls)
        notes.append(
            f"a step of {counted(parts, 'program')}, one after another: {range_text(section.step.time)} "
            f"(by {counted(section.step.steps, 'call')} that were seen)"
        )
    estimates = [program.estimate for program in section.programs]
    said = dict.fromkeys(
        f"{assumption.name}: {assumption.text} ({assumption.source})"
        for each in estimates
        for assumption in each.assumptions
    )
    return EstimateView(
        title=f"Modelled time on {sanitize(', '.join(targets))}" if targets else "Modelled time",
        headline=_headline(section),
        tile=_tile(section),
        programs=tuple(_program(program, several=len(section.programs) > 1) for program in section.programs),
        programs_left=section.programs_left,
        assumptions=tuple(sanitize(text, TEXT_LIMIT) for text in said),
        blind_spots=estimates[0].blind_spots if estimates else (),
        notes=tuple(sanitize(note, TEXT_LIMIT) for note in notes),
    )


def _headline(section: EstimateSection) -> str:
    if not section.programs:
        return ""
    first = section.programs[0]
    return f"{sanitize(first.label)}: {range_text(first.estimate.step_ns)} a run on {_target(first)} (modelled)"


def _tile(section: EstimateSection) -> tuple[str, str, str] | None:
    if not section.programs:
        return None
    first = section.programs[0]
    note = f"{sanitize(first.label)} on {_target(first)}; nothing was measured"
    return ("modelled time of a run", range_text(first.estimate.step_ns), note)


def _target(program_time: ProgramTime) -> str:
    return sanitize(program_time.estimate.target.shown)


def _program(program_time: ProgramTime, *, several: bool) -> ProgramView:
    estimate = program_time.estimate
    calls = "" if program_time.calls is None else f", called {program_time.calls:,}x while it was watched"
    label = f"{sanitize(program_time.label)}: " if several else ""
    return ProgramView(
        title=sanitize(program_time.label),
        summary=f"{label}{range_text(estimate.step_ns)} a run, modelled{calls}",
        facts=tuple(_facts(estimate)),
        lines=tuple(_line(line, estimate) for line in program_time.lines),
        lines_left=program_time.lines_left,
        instructions=tuple(_instruction(row, estimate) for row in estimate.rows),
        instructions_left=program_time.rows_left,
        warnings=tuple(sanitize(text, TEXT_LIMIT) for text in _warnings(estimate)),
        errors=() if program_time.calibration is None else tuple(_errors(program_time.calibration)),
        error_groups=() if program_time.calibration is None else tuple(map(_group, program_time.calibration.groups)),
        error_rows=()
        if program_time.calibration is None
        else tuple(map(_error, program_time.calibration.instructions)),
        pictures=tuple(picture for picture in estimate.pictures if len({span.stream for span in picture.spans}) > 1),
    )


def _facts(estimate: Estimate) -> Iterator[str]:
    low, high = estimate.parts
    yield f"low end: {_parts(low)}; high end: {_parts(high)}"
    if estimate.mfu is not None and estimate.hfu is not None:
        mfu = f"{format_share(estimate.mfu[0], 1)} to {format_share(estimate.mfu[1], 1)}"
        hfu = f"{format_share(estimate.hfu[0], 1)} to {format_share(estimate.hfu[1], 1)}"
        yield f"MFU {mfu}" + (f", HFU {hfu} (with what is computed again)" if hfu != mfu else "")
    if estimate.peak_bytes is not None:
        of = "" if estimate.memory_bytes is None else f" of {format_bytes(estimate.memory_bytes)}"
        yield f"memory at its peak {format_bytes(estimate.peak_bytes)}{of}"
    launched = f"{estimate.launches:,} launches"
    if estimate.host_ns.high:
        launched += f", {range_text(estimate.host_ns)} of the host if one by one"
    yield launched


def _parts(parts: Parts) -> str:
    """``'compute 1.20 ms, exposed communication 0.40 ms'``; what is nothing is left out."""
    named = (
        ("compute", parts.compute),
        ("exposed communication", parts.communication),
        ("exposed copies", parts.copies),
        ("launch gaps", parts.gaps),
    )
    return ", ".join(f"{name} {format_ns(spent)}" for name, spent in named if spent) or "nothing runs"


def _warnings(estimate: Estimate) -> Iterator[str]:
    if estimate.fits is False and estimate.peak_bytes is not None and estimate.memory_bytes is not None:
        yield f"does not fit: {format_bytes(estimate.peak_bytes)} of {format_bytes(estimate.memory_bytes)}"
    if estimate.host_bound:
        yield (
            f"launch bound without command buffers: the host needs {range_text(estimate.host_ns)} for "
            f"{estimate.launches:,} launches, the device {format_ns(estimate.parts[0].total)} at the least"
        )
    yield from (f"longer than the range says: {text}" for text in estimate.lower_bounds)


def _line(line: LineTime, estimate: Estimate) -> Cells:
    return (
        (
            "source line",
            _place(line.where) if line.where.file else f"no line: {sanitize(line.where.op or line.opcode)}",
        ),
        ("of the step", range_text(line.exposed)),
        ("share", of_step(line.exposed, estimate.step_ns)),
        ("instructions", f"{line.instructions:,}"),
        ("bound by", ", ".join(line.bounds[:2])),
    )


def _instruction(row: Row, estimate: Estimate) -> Cells:
    return (
        ("instruction", shorten(sanitize(row.name), NAME_LIMIT)),
        ("each", range_text(row.once)),
        ("runs", f"{row.runs:,}{'' if row.runs_exact else ' at least'}"),
        ("of the step", range_text(row.exposed)),
        ("share", of_step(row.exposed, estimate.step_ns)),
        ("bound by", _bound(row)),
        ("at", f"{_place(row.where)}{' (added by XLA)' if row.added else ''}" if row.where.file else ""),
    )


def _place(where: Where) -> str:
    """The end of a place: the beginning of a path is the same for all."""
    result = sanitize(where.label())
    return result if len(result) <= PLACE_LIMIT else f"…{result[1 - PLACE_LIMIT :]}"


def _bound(row: Row) -> str:
    text = "not known" if row.bound == "unknown" else str(row.bound)
    if row.what == "collective":
        text = row.detail if row.known else f"{row.detail}: not known"
        text = f"{text}, blocks" if row.blocks else text
    return text if row.on_path else f"{text}, off the critical path"


def _errors(calibration: Calibration) -> Iterator[str]:
    run, inside = calibration.run, "inside" if calibration.inside else "outside"
    how = f"median of {counted(run.runs, 'run')}" if run.apart else f"of {counted(run.runs, 'run')}, gaps not recorded"
    yield (
        f"measured {format_ns(run.step_ns)} a run ({how}, {calibration.matched}): {inside} the modelled "
        f"{range_text(calibration.modelled)}, {times_text(run.step_ns, calibration.modelled)}"
    )
    yield f"with measured times in it: {range_text(calibration.calibrated)}"
    if calibration.not_measured:
        yield (
            f"{counted(calibration.not_measured, 'instruction')} without a measured time, "
            f"{calibration.by_group:,} of them priced "
            "by what their kind reached, the others as modelled"
        )
    yield from (sanitize(text, TEXT_LIMIT) for text in calibration.differences)


def _group(group_error: GroupError) -> Cells:
    return (
        ("category", group_error.group),
        ("instructions", f"{group_error.instructions:,}"),
        ("measured", format_ns(group_error.measured_ns)),
        ("modelled", range_text(group_error.modelled)),
        ("inside", f"{group_error.inside:,}"),
        ("of the peaks", f"{group_error.share:.0%} (half {group_error.low_share:.0%} to {group_error.high_share:.0%})"),
    )


def _error(error: InstructionError) -> Cells:
    return (
        ("instruction", shorten(sanitize(error.row.name), NAME_LIMIT)),
        ("measured", format_ns(error.measured_ns)),
        ("modelled", range_text(error.row.once)),
        ("runs", f"{error.row.runs:,}"),
        ("off by", format_ns(error.off_ns) if error.off_ns else "inside"),
    )


def largest(view: ProgramView) -> str:
    """The lines that the most time goes to, in a sentence; ``''`` where there are none."""
    named = [f"{dict(cells)['source line']} {dict(cells)['share']}" for cells in view.lines[:NAMED]]
    return f"most at {', '.join(named)}" if named else ""


def share_of(exposed: Range, step: Range) -> float:
    """Part of the step at the middle of both ranges, 0 to 1."""
    return min(1.0, exposed.middle / step.middle) if step.middle else 0.0


# Modelled time in the JSON report.


def estimate_document(section: EstimateSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns, ranges ``{"low", "high"}``."""
    return {
        "programs": [_program_estimate_formats(program) for program in section.programs],
        "left": section.programs_left,
        "step": None if section.step is None else asdict(section.step),
        "problems": list(section.problems),
    }


def _program_estimate_formats(program_time: ProgramTime) -> dict[str, Any]:
    return {
        "program": program_time.label,
        "known_by": "modelled",
        "calls": program_time.calls,
        **_estimate(program_time.estimate),
        "lines": [asdict(line) for line in program_time.lines],
        "lines_left": program_time.lines_left,
        "instructions": [_row(row) for row in program_time.estimate.rows],
        "instructions_left": program_time.rows_left,
        "calibration": None if program_time.calibration is None else _calibration(program_time.calibration),
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "target": estimate.target.shown,
        "step_ns": asdict(estimate.step_ns),
        "parts_ns": {"low": asdict(estimate.parts[0]), "high": asdict(estimate.parts[1])},
        "launches": estimate.launches,
        "host_ns": asdict(estimate.host_ns),
        "host_bound": estimate.host_bound,
        "mfu": None if estimate.mfu is None else list(estimate.mfu),
        "hfu": None if estimate.hfu is None else list(estimate.hfu),
        "peak_bytes": estimate.peak_bytes,
        "memory_bytes": estimate.memory_bytes,
        "fits": estimate.fits,
        "assumptions": [asdict(assumption) for assumption in estimate.assumptions],
        "blind_spots": list(estimate.blind_spots),
        "lower_bounds": list(estimate.lower_bounds),
        "not_known": len(estimate.not_known),
    }


def _row(row: Row) -> dict[str, Any]:
    return {**asdict(row), "total": asdict(row.total)}


def _calibration(calibration: Calibration) -> dict[str, Any]:
    return {
        "matched": calibration.matched,
        "differences": list(calibration.differences),
        "measured_ns": calibration.run.step_ns,
        "measured_busy_ns": calibration.run.busy_ns,
        "runs": calibration.run.runs,
        "devices": calibration.run.devices,
        "inside": calibration.inside,
        "calibrated_ns": asdict(calibration.calibrated),
        "groups": [asdict(group) for group in calibration.groups],
        "instructions": [_error_estimate_formats(instruction) for instruction in calibration.instructions],
        "not_measured": calibration.not_measured,
        "priced_by_group": calibration.by_group,
    }


def _error_estimate_formats(error: InstructionError) -> dict[str, Any]:
    return {
        "computation": error.row.computation,
        "name": error.row.name,
        "group": error.group,
        "runs": error.row.runs,
        "measured_ns": error.measured_ns,
        "modelled_ns": asdict(error.row.once),
        "off_ns": error.off_ns,
        "inside": error.inside,
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
    streams = list(
        dict.fromkeys(
            span.stream for span in sorted(view.spans, key=lambda stream_span: stream_span.stream != "compute")
        )
    )
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


def _list(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape_html(text)}</li>' for text in texts)}</ul>"


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape_html(summary)}</summary>{body}</details>"
