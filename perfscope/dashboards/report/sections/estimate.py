"""Modelled time of programs compiled for a target: a range, its source lines, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import (
    Box,
    Column,
    Lane,
    Lanes,
    Legend,
    Listing,
    Section,
    Text,
    Tile,
    notes,
    table,
    tables,
)
from perfscope.dashboards.report.blocks import Range as Ends
from perfscope.dashboards.report.renderers.values import range_text
from perfscope.dashboards.report.sections.compile import counted
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.predict import (
        Calibration,
        Estimate,
        GroupError,
        InstructionError,
        LineTime,
        Parts,
        Range,
        Row,
        StreamPicture,
    )
    from perfscope.analyzers.sections import EstimateSection, ProgramTime
    from perfscope.dashboards.report.blocks import Block

COLORS = {"compute": "#3b78c9", "communication": "#c98714", "copy": "#7a8793"}
STREAM_NAMES = {"compute": "compute", "communication": "collectives", "copy": "copies"}


def ends(span: Range) -> Ends:
    """A modelled range as a cell value."""
    return Ends(span.low, span.high)


def of_step(part: Range, step: Range) -> str:
    """``'12-31%'``: share at the low end and at the high end, the smaller first."""
    shares = sorted(100 * value / whole for value, whole in ((part.low, step.low), (part.high, step.high)) if whole)
    if not shares:
        return "-"
    low, high = (f"{share:.0f}" for share in (shares[0], shares[-1]))
    return f"{high}%" if low == high else f"{low}-{high}%"


def estimate_fact(section: EstimateSection) -> str:
    """``'jit_step: 1.20 to 3.41 ms per run on 1x H100 (modelled)'``; ``''`` if no time is known."""
    if not section.programs:
        return ""
    first = section.programs[0]
    return f"{sanitize(first.label)}: {_time(first)} per run on {_target(first)} (modelled)"


def estimate_tile(section: EstimateSection) -> Tile | None:
    """The tile at the top of the page; ``None`` if no time is known."""
    if not section.programs:
        return None
    first = section.programs[0]
    note = f"{sanitize(first.label)} on {_target(first)}; nothing was measured"
    return Tile("modelled time of a run", _time(first), note)


def estimate_sections(section: EstimateSection) -> tuple[Section, ...]:
    """One section; empty if no program was compiled for a target and nothing failed."""
    if not section.programs and not section.problems:
        return ()
    targets = list(dict.fromkeys(program.estimate.target.shown for program in section.programs))
    several = len(section.programs) > 1
    return (
        Section(
            title=f"Modelled time on {', '.join(targets)}" if targets else "Modelled time",
            summary="a range, from the vendor's peaks to what kernels usually reach" if targets else "",
            blocks=(
                *(
                    block
                    for index, program in enumerate(section.programs)
                    for block in _program(program, several=several, detail=index > 1)
                ),
                *notes(*_notes(section)),
                *_limits(section),
            ),
        ),
    )


def _notes(section: EstimateSection) -> Iterator[str]:
    if section.programs_left:
        yield f"and {section.programs_left:,} more programs, which take less"
    yield from section.problems
    if section.step is not None:
        parts = sum(count is not None for count in section.step.calls)
        yield (
            f"a step of {counted(parts, 'program')}, one after another: {range_text(ends(section.step.time))} "
            f"(by {counted(section.step.steps, 'call')} that were seen)"
        )


def _limits(section: EstimateSection) -> tuple[Listing, ...]:
    """The assumptions of the range, and what is not included."""
    assumed = dict.fromkeys(
        f"assumed: {assumption.name}: {assumption.text} ({assumption.source})"
        for program in section.programs
        for assumption in program.estimate.assumptions
    )
    left_out = section.programs[0].estimate.blind_spots if section.programs else ()
    texts = (*assumed, *(f"not in it: {text}" for text in left_out))
    return (Listing(items=texts, rest="assumptions, and what is not in the range", detail=True),) if texts else ()


def _target(program_time: ProgramTime) -> str:
    return sanitize(program_time.estimate.target.shown)


def _time(program_time: ProgramTime) -> str:
    return range_text(ends(program_time.estimate.step_ns))


def _program(program_time: ProgramTime, *, several: bool, detail: bool) -> Iterator[Block]:
    """One program. ``several``: show its name; ``detail``: show all of it as a detail."""
    estimate, calibration = program_time.estimate, program_time.calibration
    name = f"{sanitize(program_time.label)}: " if several else ""
    calls = "" if program_time.calls is None else f", called {program_time.calls:,}x while it was watched"
    yield Text(f"{name}{_time(program_time)} per run, modelled{calls}", detail=detail)
    yield from (Text(text, detail=detail, warning=True) for text in _warnings(estimate))
    yield from notes(*_facts(estimate), detail=detail)
    if calibration is not None:
        yield from notes(*_errors(calibration), detail=detail)
    yield from (stream_lanes(view) for view in estimate.pictures if len({span.stream for span in view.spans}) > 1)
    yield from tables(
        table(
            _line_columns(estimate), program_time.lines, few=6, left=program_time.lines_left, rest="lines",
            detail=detail, title=f"lines of {program_time.label}" if detail else "",
        ),
        table(
            _instruction_columns(estimate), estimate.rows, title=f"{name}instructions", detail=True,
            left=program_time.rows_left, rest="instructions",
        ),
    )  # fmt: skip
    if calibration is not None:
        yield from tables(
            table(GROUPS, calibration.groups, title=f"{name}measured against modelled, by category", detail=True),
            table(ERRORS, calibration.instructions, title=f"{name}measured against modelled", detail=True),
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
        launched += f", {range_text(ends(estimate.host_ns))} of the host if one by one"
    yield launched


def _parts(parts: Parts) -> str:
    """``'compute 1.20 ms, exposed communication 0.40 ms'``; zero parts are left out."""
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
            f"launch bound without command buffers: the host needs {range_text(ends(estimate.host_ns))} for "
            f"{estimate.launches:,} launches, the device {format_ns(estimate.parts[0].total)} at least"
        )
    yield from (f"longer than the range: {text}" for text in estimate.lower_bounds)


def _line_columns(estimate: Estimate) -> tuple[Column[LineTime], ...]:
    return (
        Column(
            "source line",
            lambda line: line.where.label() if line.where.file else f"no line: {line.where.op or line.opcode}",
            "place",
        ),
        Column("of the step", lambda line: ends(line.exposed), "ns"),
        Column("share", lambda line: of_step(line.exposed, estimate.step_ns), "share", drop=3),
        Column("instructions", lambda line: line.instructions, "count", drop=1),
        Column("bound by", lambda line: ", ".join(line.bounds[:2]), drop=2),
    )


def _instruction_columns(estimate: Estimate) -> tuple[Column[Row], ...]:
    return (
        Column("instruction", lambda row: row.name, "code"),
        Column("each", lambda row: ends(row.once), "ns", drop=3),
        Column("runs", lambda row: f"{row.runs:,}{'' if row.runs_exact else ' at least'}", "count", drop=2),
        Column("of the step", lambda row: ends(row.exposed), "ns"),
        Column("share", lambda row: of_step(row.exposed, estimate.step_ns), "share", drop=5),
        Column("bound by", _bound, drop=4),
        Column("at", _where, "place", drop=1),
    )


def _where(row: Row) -> str:
    return f"{row.where.label()}{' (added by XLA)' if row.added else ''}" if row.where.file else ""


def _bound(row: Row) -> str:
    text = "not known" if row.bound == "unknown" else str(row.bound)
    if row.what == "collective":
        text = row.detail if row.known else f"{row.detail}: not known"
        text = f"{text}, blocks" if row.blocks else text
    return text if row.on_path else f"{text}, off the critical path"


GROUPS: tuple[Column[GroupError], ...] = (
    Column("category", lambda group: group.group),
    Column("instructions", lambda group: group.instructions, "count"),
    Column("measured", lambda group: group.measured_ns, "ns"),
    Column("modelled", lambda group: ends(group.modelled), "ns"),
    Column("inside", lambda group: group.inside, "count"),
    Column(
        "of the peaks",
        lambda group: f"{group.share:.0%} (half {group.low_share:.0%} to {group.high_share:.0%})",
        "share",
    ),
)

ERRORS: tuple[Column[InstructionError], ...] = (
    Column("instruction", lambda error: error.row.name, "code"),
    Column("measured", lambda error: error.measured_ns, "ns"),
    Column("modelled", lambda error: ends(error.row.once), "ns"),
    Column("runs", lambda error: error.row.runs, "count"),
    Column("off by", lambda error: error.off_ns or "inside", "ns"),
)


def times_text(measured: float, modelled: Range) -> str:
    """Distance of a measured time from both ends: ``'1.8x the low end, 0.9x the high end'``."""
    return f"{measured / max(1, modelled.low):.2f}x the low end, {measured / max(1, modelled.high):.2f}x the high end"


def _errors(calibration: Calibration) -> Iterator[str]:
    run, inside = calibration.run, "inside" if calibration.inside else "outside"
    how = f"median of {counted(run.runs, 'run')}" if run.apart else f"of {counted(run.runs, 'run')}, gaps not recorded"
    yield (
        f"measured {format_ns(run.step_ns)} per run ({how}, {calibration.matched}): {inside} the modelled "
        f"{range_text(ends(calibration.modelled))}, {times_text(run.step_ns, calibration.modelled)}"
    )
    yield f"with measured times in it: {range_text(ends(calibration.calibrated))}"
    if calibration.not_measured:
        yield (
            f"{counted(calibration.not_measured, 'instruction')} without a measured time, "
            f"{calibration.by_group:,} of them priced "
            "by what their kind reached, the others as modelled"
        )
    yield from (sanitize(text) for text in calibration.differences)


def stream_lanes(view: StreamPicture) -> Lanes:
    """Work of each stream at the high end of the range, a lane per stream; a loop is one paler block."""
    lanes: dict[str, list[Box]] = {}
    for span in sorted(view.spans, key=lambda stream_span: stream_span.stream != "compute"):
        turns = f", {span.repeats:,} turns" if span.repeats > 1 else ""
        title = f"{span.label}: {format_ns(span.end - span.start)}{turns}"
        opacity = 0.55 if span.repeats > 1 else 0.9
        box = Box(start=span.start, end=span.end, color=COLORS[span.kind], title=title, opacity=opacity)
        lanes.setdefault(span.stream, []).append(box)
    what = f"one of {view.turns:,} turns of {view.of}" if view.of else "one run, loops paler"
    left = ((f"{view.left:,} short stretches are not drawn", ""),) if view.left else ()
    kinds = tuple((STREAM_NAMES[kind], COLORS[kind]) for kind in dict.fromkeys(span.kind for span in view.spans))
    return Lanes(
        lanes=tuple(Lane(name=name, boxes=tuple(boxes), words=f"{what}: {name}") for name, boxes in lanes.items()),
        end=max(1, view.length_ns),
        legend=Legend(((what, ""), *kinds, *left)),
        below=("0", f"{format_ns(view.length_ns)}, the high end"),
    )
