"""Compiled XLA programs: runs, arithmetic, peak memory, and time by source line and instruction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.blocks import Column, Marked, Section, notes, table, tables
from perfscope.model.documents.causes import LEAST_SHARE
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.programs import Execution, HotInstruction, HotPlace, HotSpots, LeastTime, Program
    from perfscope.analyzers.sections import ProgramsSection
    from perfscope.dashboards.report.blocks import Block, Value

FIRST_LINES = 4
"""Source lines shown on the first screen of a terminal."""

NAME_LIMIT = 28
"""Characters of a program's or an instruction's name in a table."""

SMALL_PART = 0.005
"""Smallest share of arithmetic or least time that is named: below half a percent it shows as 0%."""

NO_PEAKS_CPU = "CPU: no peaks known, no roofline"
NO_PEAKS = "the recording names no device whose peaks are known: no roofline"

AT_LEAST = ">="
"""Mark of a lower bound: a trip count or the arithmetic of an instruction is unknown."""

_WORDS = {"unnamed": "added by XLA", "unknown": "what is not known"}


def programs_sections(section: ProgramsSection) -> tuple[Section, ...]:
    """The programs and their time; no section without programs."""
    if not section.programs and not section.problems:
        return ()
    programs = tuple(program for program in section.programs if program.execution is not None or not section.ran)
    spots = section.hot_spots[:1]
    return (
        Section(title="Compiled programs", summary=_summary(section), blocks=tuple(_blocks(section, programs))),
        *(Section(title=hot_title(hot), blocks=_hot(hot)) for hot in spots),
    )


def hot_line_sections(section: ProgramsSection) -> tuple[Section, ...]:
    """Measured time of instructions by source line, of the recording with most; empty if no line is known."""
    spots = next((spots for spots in section.hot_spots if spots.basis == "measured"), None)
    if spots is None:
        return ()
    from perfscope.analyzers.programs import NO_LINE  # not for recordings without programs

    least = LEAST_SHARE * spots.total_ns
    known = (place for place in spots.lines if place.instructions and place.name != NO_LINE)
    lines = tuple(place for place in known if place.time_ns >= least)
    if not lines:
        return ()
    summary = f"instructions in the whole recording (100% = {format_ns(spots.total_ns)})"
    shown = table(_place_columns("source line", spots), lines, few=FIRST_LINES)
    return (Section(title="By source line", summary=summary, blocks=(shown,)),)


def _summary(section: ProgramsSection) -> str:
    count = len(section.programs) + section.programs_left
    if not count:
        return ""
    ran = f", {section.ran:,} of them ran in the recording" if section.ran else ""
    return f"{count:,} program{'' if count == 1 else 's'}{ran}"


def _blocks(section: ProgramsSection, programs: tuple[Program, ...]) -> Iterator[Block]:
    left = section.programs_left + len(section.programs) - len(programs)
    rest = "programs (not run, or with less time)" if section.ran else "programs"
    yield from tables(table(_columns(section), programs, few=3, left=left, rest=rest))
    for index, program in enumerate(programs):
        lead = f"{sanitize(program.name)}: " if len(programs) > 1 else ""
        yield from notes(*(lead + sentence for sentence in _details(program)), detail=index > 0)
    yield from notes(_basis(programs), *_notes(section))


def ran_on_cpu(section: ProgramsSection, traced_steps: int) -> str:
    """Programs that ran without an accelerator: ``'XLA CPU: 3 programs, 42.1 ms of instruction time ...'``."""
    programs = f"{section.ran:,} program{'' if section.ran == 1 else 's'}"
    steps = f" in {traced_steps:,} step{'' if traced_steps == 1 else 's'}" if traced_steps else ""
    time = f"{format_ns(section.instructions_ns)} of instruction time{steps}"
    return f"XLA CPU: {programs}, {time} (thread pool time, may exceed wall time)"


def _columns(section: ProgramsSection) -> tuple[Column[Program], ...]:
    several = len({program.rank for program in section.programs}) > 1
    whole = section.instructions_ns
    return (
        Column("rank", lambda program: program.rank if several else None, "count"),
        Column("program", lambda program: program.name or "no name", "code", limit=NAME_LIMIT),
        Column("runs", lambda program: None if program.execution is None else _runs(program.execution), "count"),
        Column("time", lambda program: None if program.execution is None else program.execution.instructions_ns, "ns"),
        Column("share", lambda program: _share(program, whole), "share"),
        Column("FLOPs", lambda program: _bounded(program.flops, exact=program.exact), "quantity", drop=6),
        Column("bytes", lambda program: _bounded(program.bytes, exact=program.exact), "bytes", drop=3),
        Column("peak", _peak, "bytes", drop=5),
        Column("least time", lambda program: _least_ns(program.least), "ns", drop=4),
        Column("bound by", lambda program: None if program.least is None else program.least.bound, drop=1),
        Column("MFU", _mfu, "share", drop=2),
    )


def _share(program: Program, whole: int) -> float | None:
    return program.execution.instructions_ns / whole if program.execution is not None and whole else None


def _bounded(value: float | None, *, exact: bool) -> Value:
    return None if value is None else Marked(value, "" if exact else AT_LEAST)


def _peak(program: Program) -> Value:
    if program.peak_bytes is None:
        return None
    return Marked(program.peak_bytes, "~" if program.peak_known_by == "modelled" else "")


def _least_ns(least: LeastTime | None) -> Value:
    return None if least is None else _bounded(least.total_ns, exact=least.exact)


def _mfu(program: Program) -> Value:
    use = program.utilization
    return None if use is None else _bounded(use.mfu, exact=use.exact)


def _runs(ran: Execution) -> str:
    """``'3'``, ``'3 x 8'`` on 8 devices; ``~`` if derived from the instructions."""
    each = ran.count / ran.devices
    number = f"{each:.0f}" if each == int(each) else f"{each:.1f}"
    return ("" if ran.counted else "~") + number + (f" x {ran.devices}" if ran.devices > 1 else "")


def _details(program: Program) -> Iterator[str]:
    ran, least, use = program.execution, program.least, program.utilization
    if ran is not None:
        each = f"per run: {format_ns(ran.instructions_ns / ran.count)} of instructions"
        if ran.span_ns is not None:
            each += f" in {format_ns(ran.span_ns / ran.count)} from first to last"
        if ran.launch_ns < ran.instructions_ns:
            each += f"; {format_ns(ran.launch_ns / ran.count)} in the calls that began them, the rest in a thread pool"
        yield f"{each} (measured)"
    phases = _parts(program.flops_by_phase, program.flops or 0)
    if len(program.flops_by_phase) > 1 and phases:
        yield f"FLOPs: {phases} (modelled)"
    if least is not None:
        mark = "" if least.exact else f"{AT_LEAST} "
        parts = _parts(least.by_bound, least.total_ns)
        yield f"least time {mark}{format_ns(least.total_ns)} per run on {least.device}: bound by {parts} (modelled)"
    if use is not None and ran is not None:
        over = "instructions' time" if ran.span_ns is None else "span of a run"
        yield f"MFU {100 * use.mfu:.1f}%, HFU {100 * use.hfu:.1f}% over the {over} (FLOPs modelled, time measured)"
    if program.unknown:
        many = "instruction whose" if program.unknown == 1 else "instructions whose"
        yield f"{program.unknown:,} {many} arithmetic is not known (custom calls): FLOPs are a lower bound"


def _parts(parts: Mapping[Any, float], whole: float) -> str:
    """``'backward 65.1%, forward 34.5%'``, the largest first."""
    largest = sorted(parts, key=lambda name: -parts[name])
    texts = [
        f"{_WORDS.get(name, name)} {format_share(parts[name], whole)}"
        for name in largest
        if whole and parts[name] / whole >= SMALL_PART
    ]
    return ", ".join(texts)


def _basis(programs: Sequence[Program]) -> str:
    """Which numbers are measured, modelled or structural."""
    sources = []
    if any(program.execution is not None for program in programs):
        sources.append("runs and time measured")
    if any(program.flops is not None for program in programs):
        least = ", least time" if any(program.least is not None for program in programs) else ""
        sources.append(f"FLOPs, bytes{least} modelled")
    kinds = {program.peak_known_by for program in programs if program.peak_known_by is not None}
    if kinds == {"assigned"}:
        sources.append("peak memory as XLA assigned it")
    elif kinds:
        assigned = "peak memory as XLA assigned it, ~ modelled"
        sources.append(assigned if "assigned" in kinds else "peak memory modelled (~)")
    return "; ".join(sources)


def _notes(section: ProgramsSection) -> Iterator[str]:
    recorded = [program for program in section.programs if program.module_index is not None]
    if recorded and all(program.least is None for program in recorded):
        platforms = {program.platform for program in recorded} - {None}
        if platforms == {"cpu"}:
            yield NO_PEAKS_CPU
        elif platforms:
            yield NO_PEAKS
    if not section.ran and not section.hot_spots and recorded:
        yield "no times of instructions: `perfscope run` records them"
    if section.spots_left or len(section.hot_spots) > 1:
        others = len(section.hot_spots) - 1 + section.spots_left
        what = "recording" if section.hot_spots[0].basis == "measured" else "program"
        yield f"lines and instructions are those of the {what} with the most time, of {others + 1:,}"
    yield from section.problems


def hot_title(spots: HotSpots) -> str:
    """Title of the tables: ``'Where the time goes: 42.1 ms of instructions, measured'``."""
    whole = format_ns(spots.total_ns)
    of = f" of {sanitize(spots.program, NAME_LIMIT)}" if spots.program else ""
    of += f" of rank {spots.rank}" if spots.rank is not None else ""
    if spots.basis == "measured":
        missed = f", {format_share(spots.unmatched_ns, spots.total_ns)} of it in no recorded program"
        return f"Where the time{of} goes: {whole} of instructions, measured" + (missed if spots.unmatched_ns else "")
    return f"Where the least time{of} goes: {whole} per run, modelled"


def _hot(spots: HotSpots) -> tuple[Block, ...]:
    left = {name: left.count for name, left in spots.left.items()}
    return tables(
        table(
            _place_columns("source line", spots), spots.lines, title="by source line", bar="shares",
            left=left.get("lines", 0), rest="lines, which take less",
        ),
        table(
            _place_columns("module", spots), spots.modules, title="by module", detail=True, bar="shares",
            left=left.get("modules", 0), rest="modules, which take less",
        ),
        table(
            _place_columns("scope", spots), spots.scopes, title="by scope", detail=True, bar="shares",
            left=left.get("scopes", 0), rest="scopes, which take less",
        ),
        table(
            _instruction_columns(spots), spots.instructions, title="by instruction", detail=True, bar="shares",
            left=left.get("instructions", 0), rest="instructions, which take less",
        ),
    )  # fmt: skip


def _place_columns(title: str, spots: HotSpots) -> tuple[Column[HotPlace], ...]:
    mainly: Column[HotPlace] = Column("mainly", lambda place: place.mainly, "code", drop=1, limit=40)
    return (
        Column("time", lambda place: place.time_ns, "ns"),
        Column("share", lambda place: place.time_ns / spots.total_ns if spots.total_ns else None, "share"),
        Column(title, lambda place: place.name, "place"),
        Column("phase", lambda place: place.phase if place.phase != "forward" else None),
        *((mainly,) if title != "scope" else ()),
        Column("instructions", lambda place: place.instructions or None, "count", drop=2),
    )


def _instruction_columns(spots: HotSpots) -> tuple[Column[HotInstruction], ...]:
    return (
        Column("time", lambda row: row.time_ns, "ns"),
        Column("share", lambda row: row.time_ns / spots.total_ns if spots.total_ns else None, "share"),
        Column("instruction", lambda row: row.instruction, "code", limit=NAME_LIMIT),
        Column("op", lambda row: row.scope or row.opcode, "code", drop=1, limit=NAME_LIMIT),
        Column("at", _line, "place"),
        Column("calls", lambda row: row.calls, "count", drop=2),
        Column("bound by", lambda row: row.bound, drop=4),
        Column("roof", lambda row: row.roof_ns, "ns", drop=3),
        Column("headroom", lambda row: row.headroom_ns, "ns", drop=5),
    )


def _line(row: HotInstruction) -> str | None:
    return row.file if row.file is None or row.line is None else f"{row.file}:{row.line}"
