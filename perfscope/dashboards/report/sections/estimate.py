"""The modelled time of compiled programs as rows and sentences, decided once for every report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.dashboards.report.sections.compile import counted
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, shorten

if TYPE_CHECKING:
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
    shares = sorted(100 * one / whole for one, whole in ((part.low, step.low), (part.high, step.high)) if whole)
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
    targets = list(dict.fromkeys(one.estimate.target.shown for one in section.programs))
    notes = [*section.problems]
    if section.step is not None:
        parts = sum(count is not None for count in section.step.calls)
        notes.append(
            f"a step of {counted(parts, 'program')}, one after another: {range_text(section.step.time)} "
            f"(by {counted(section.step.steps, 'call')} that were seen)"
        )
    held = [one.estimate for one in section.programs]
    said = dict.fromkeys(f"{one.name}: {one.text} ({one.source})" for each in held for one in each.assumptions)
    return EstimateView(
        title=f"Modelled time on {sanitize(', '.join(targets))}" if targets else "Modelled time",
        headline=_headline(section),
        tile=_tile(section),
        programs=tuple(_program(one, several=len(section.programs) > 1) for one in section.programs),
        programs_left=section.programs_left,
        assumptions=tuple(sanitize(text, TEXT_LIMIT) for text in said),
        blind_spots=held[0].blind_spots if held else (),
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


def _target(one: ProgramTime) -> str:
    return sanitize(one.estimate.target.shown)


def _program(one: ProgramTime, *, several: bool) -> ProgramView:
    found = one.estimate
    calls = "" if one.calls is None else f", called {one.calls:,}x while it was watched"
    return ProgramView(
        title=sanitize(one.label),
        summary=f"{f'{sanitize(one.label)}: ' if several else ''}{range_text(found.step_ns)} a run, modelled{calls}",
        facts=tuple(_facts(found)),
        lines=tuple(_line(line, found) for line in one.lines),
        lines_left=one.lines_left,
        instructions=tuple(_instruction(row, found) for row in found.rows),
        instructions_left=one.rows_left,
        warnings=tuple(sanitize(text, TEXT_LIMIT) for text in _warnings(found)),
        errors=() if one.calibration is None else tuple(_errors(one.calibration)),
        error_groups=() if one.calibration is None else tuple(map(_group, one.calibration.groups)),
        error_rows=() if one.calibration is None else tuple(map(_error, one.calibration.instructions)),
        pictures=tuple(one for one in found.pictures if len({span.stream for span in one.spans}) > 1),
    )


def _facts(found: Estimate) -> Iterator[str]:
    low, high = found.parts
    yield f"low end: {_parts(low)}; high end: {_parts(high)}"
    if found.mfu is not None and found.hfu is not None:
        mfu = f"{format_share(found.mfu[0], 1)} to {format_share(found.mfu[1], 1)}"
        hfu = f"{format_share(found.hfu[0], 1)} to {format_share(found.hfu[1], 1)}"
        yield f"MFU {mfu}" + (f", HFU {hfu} (with what is computed again)" if hfu != mfu else "")
    if found.peak_bytes is not None:
        of = "" if found.memory_bytes is None else f" of {format_bytes(found.memory_bytes)}"
        yield f"memory at its peak {format_bytes(found.peak_bytes)}{of}"
    launched = f"{found.launches:,} launches"
    if found.host_ns.high:
        launched += f", {range_text(found.host_ns)} of the host if one by one"
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


def _warnings(found: Estimate) -> Iterator[str]:
    if found.fits is False and found.peak_bytes is not None and found.memory_bytes is not None:
        yield f"does not fit: {format_bytes(found.peak_bytes)} of {format_bytes(found.memory_bytes)}"
    if found.host_bound:
        yield (
            f"launch bound without command buffers: the host needs {range_text(found.host_ns)} for "
            f"{found.launches:,} launches, the device {format_ns(found.parts[0].total)} at the least"
        )
    yield from (f"longer than the range says: {text}" for text in found.lower_bounds)


def _line(line: LineTime, found: Estimate) -> Cells:
    return (
        (
            "source line",
            _place(line.where) if line.where.file else f"no line: {sanitize(line.where.op or line.opcode)}",
        ),
        ("of the step", range_text(line.exposed)),
        ("share", of_step(line.exposed, found.step_ns)),
        ("instructions", f"{line.instructions:,}"),
        ("bound by", ", ".join(line.bounds[:2])),
    )


def _instruction(row: Row, found: Estimate) -> Cells:
    return (
        ("instruction", shorten(sanitize(row.name), NAME_LIMIT)),
        ("each", range_text(row.once)),
        ("runs", f"{row.runs:,}{'' if row.runs_exact else ' at least'}"),
        ("of the step", range_text(row.exposed)),
        ("share", of_step(row.exposed, found.step_ns)),
        ("bound by", _bound(row)),
        ("at", f"{_place(row.where)}{' (added by XLA)' if row.added else ''}" if row.where.file else ""),
    )


def _place(where: Where) -> str:
    """The end of a place: the beginning of a path is the same for all."""
    found = sanitize(where.label())
    return found if len(found) <= PLACE_LIMIT else f"…{found[1 - PLACE_LIMIT :]}"


def _bound(row: Row) -> str:
    said = "not known" if row.bound == "unknown" else str(row.bound)
    if row.what == "collective":
        said = row.detail if row.known else f"{row.detail}: not known"
        said = f"{said}, blocks" if row.blocks else said
    return said if row.on_path else f"{said}, off the critical path"


def _errors(found: Calibration) -> Iterator[str]:
    run, inside = found.run, "inside" if found.inside else "outside"
    how = f"median of {counted(run.runs, 'run')}" if run.apart else f"of {counted(run.runs, 'run')}, gaps not recorded"
    yield (
        f"measured {format_ns(run.step_ns)} a run ({how}, {found.matched}): {inside} the modelled "
        f"{range_text(found.modelled)}, {times_text(run.step_ns, found.modelled)}"
    )
    yield f"with measured times in it: {range_text(found.calibrated)}"
    if found.not_measured:
        yield (
            f"{counted(found.not_measured, 'instruction')} without a measured time, {found.by_group:,} of them priced "
            "by what their kind reached, the others as modelled"
        )
    yield from (sanitize(text, TEXT_LIMIT) for text in found.differences)


def _group(one: GroupError) -> Cells:
    return (
        ("category", one.group),
        ("instructions", f"{one.instructions:,}"),
        ("measured", format_ns(one.measured_ns)),
        ("modelled", range_text(one.modelled)),
        ("inside", f"{one.inside:,}"),
        ("of the peaks", f"{one.share:.0%} (half {one.low_share:.0%} to {one.high_share:.0%})"),
    )


def _error(one: InstructionError) -> Cells:
    return (
        ("instruction", shorten(sanitize(one.row.name), NAME_LIMIT)),
        ("measured", format_ns(one.measured_ns)),
        ("modelled", range_text(one.row.once)),
        ("runs", f"{one.row.runs:,}"),
        ("off by", format_ns(one.off_ns) if one.off_ns else "inside"),
    )


def largest(view: ProgramView) -> str:
    """The lines that the most time goes to, in a sentence; ``''`` where there are none."""
    named = [f"{dict(cells)['source line']} {dict(cells)['share']}" for cells in view.lines[:NAMED]]
    return f"most at {', '.join(named)}" if named else ""


def share_of(exposed: Range, step: Range) -> float:
    """Part of the step at the middle of both ranges, 0 to 1."""
    return min(1.0, exposed.middle / step.middle) if step.middle else 0.0
