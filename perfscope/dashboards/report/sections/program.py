"""The compiled programs of an analysis as rows and sentences, decided once for every report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.hot_rows import NAME_LIMIT, HotTable, hot_title, instruction_table, place_table
from perfscope.model.units import format_bytes, format_count, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.programs import Execution, LeastTime, Program
    from perfscope.analyzers.sections.programs import ProgramsSection

SMALL_PART = 0.005
"""A part of the arithmetic or of the least time below half a percent shows as 0% and is left out."""

NO_PEAKS_CPU = "CPU: no peaks known, no roofline"
NO_PEAKS = "the recording names no device whose peaks are known: no roofline"

AT_LEAST = ">="
"""Before a lower bound: a trip count or the arithmetic of an instruction is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """A program as cells; ``''`` is not known, or not asked (a program that did not run)."""

    name: str
    runs: str
    """``'3'``, ``'3 x 8'`` (on 8 devices), ``'~3'`` where the profile numbers no executions."""
    time: str
    """Measured time of its instructions, all executions."""
    share: str
    flops: str
    bytes: str
    peak: str
    least: str
    """Least time of a run."""
    bound: str
    """What holds back most of the least time."""
    mfu: str
    details: tuple[str, ...]
    """Sentences: where a run's time, arithmetic and least time go."""

    def cells(self) -> tuple[tuple[str, str], ...]:
        """(column, cell) of all that the table has."""
        return (
            ("program", self.name), ("runs", self.runs), ("time", self.time), ("share", self.share),
            ("FLOPs a run", self.flops), ("bytes a run", self.bytes), ("peak memory", self.peak),
            ("least time", self.least), ("bound by", self.bound), ("MFU", self.mfu),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramsView:
    """The whole section."""

    rows: tuple[ProgramRow, ...]
    rows_left: int
    why_left: str
    """``' (not run, or with less time)'`` of a recording."""
    columns: tuple[str, ...]
    """Columns that any row fills."""
    known_by: str
    """Which numbers are measured, modelled or structural."""
    hot_title: str
    lines: HotTable | None
    scopes: HotTable | None
    instructions: HotTable | None
    notes: tuple[str, ...]


def programs_view(section: ProgramsSection) -> ProgramsView | None:
    """The section as rows; ``None`` where there is no program."""
    if not section.programs and not section.problems:
        return None
    rows = tuple(_program(one, section) for one in section.programs if one.execution is not None or not section.ran)
    left = section.programs_left + len(section.programs) - len(rows)
    filled = {name for row in rows for name, cell in row.cells() if cell}
    spots = section.hot_spots[0] if section.hot_spots else None
    return ProgramsView(
        rows=rows,
        rows_left=left,
        why_left=" (not run, or with less time)" if section.ran else "",
        columns=tuple(name for name, _ in rows[0].cells() if name in filled) if rows else (),
        known_by=_known_by(section.programs[: len(rows)]),
        hot_title="" if spots is None else hot_title(spots),
        lines=None if spots is None else place_table("source line", spots.lines, spots, "lines"),
        scopes=None if spots is None else place_table("scope", spots.scopes, spots, "scopes"),
        instructions=None if spots is None else instruction_table(spots),
        notes=tuple(_notes(section)),
    )


def ran_on_cpu(section: ProgramsSection, traced_steps: int) -> str:
    """What ran where no accelerator did: ``'XLA CPU: 3 programs, 42.1 ms of instruction time ...'``."""
    programs = f"{section.ran:,} program{'' if section.ran == 1 else 's'}"
    steps = f" in {traced_steps:,} step{'' if traced_steps == 1 else 's'}" if traced_steps else ""
    time = f"{format_ns(section.instructions_ns)} of instruction time{steps}"
    return f"XLA CPU: {programs}, {time} (thread pool time, may exceed wall time)"


def _program(program: Program, section: ProgramsSection) -> ProgramRow:
    ran, least = program.execution, program.least
    bound = "" if program.exact else f"{AT_LEAST} "
    rank = f"rank {program.rank} " if program.rank is not None and len({p.rank for p in section.programs}) > 1 else ""
    peak = "" if program.peak_bytes is None else format_bytes(program.peak_bytes)
    use = program.utilization
    return ProgramRow(
        name=rank + (sanitize(program.name, NAME_LIMIT) or "no name"),
        runs="" if ran is None else _runs(ran),
        time="" if ran is None else format_ns(ran.instructions_ns),
        share="" if ran is None else format_share(ran.instructions_ns, section.instructions_ns),
        flops="" if program.flops is None else bound + format_count(program.flops),
        bytes="" if program.bytes is None else bound + format_bytes(program.bytes),
        peak=f"~{peak}" if program.peak_known_by == "modelled" else peak,
        least="" if least is None else ("" if least.exact else f"{AT_LEAST} ") + format_ns(least.total_ns),
        bound="" if least is None else least.bound,
        mfu="" if use is None else ("" if use.exact else f"{AT_LEAST} ") + f"{100 * use.mfu:.1f}%",
        details=tuple(_details(program)),
    )


def _runs(ran: Execution) -> str:
    """Executions of each device, and on how many; ``~`` where they were told from the instructions."""
    each = ran.count / ran.devices
    number = f"{each:.0f}" if each == int(each) else f"{each:.1f}"
    return ("" if ran.counted else "~") + number + (f" x {ran.devices}" if ran.devices > 1 else "")


def _details(program: Program) -> Iterator[str]:
    ran, least, use = program.execution, program.least, program.utilization
    if ran is not None:
        each = f"a run: {format_ns(ran.instructions_ns / ran.count)} of instructions"
        if ran.span_ns is not None:
            each += f" in {format_ns(ran.span_ns / ran.count)} from first to last"
        if ran.launch_ns < ran.instructions_ns:
            each += f"; {format_ns(ran.launch_ns / ran.count)} in the calls that began them, the rest in a thread pool"
        yield f"{each} (measured)"
    phases = _parts(program.flops_by_phase, program.flops or 0)
    if len(program.flops_by_phase) > 1 and phases:
        yield f"FLOPs: {phases} (modelled)"
    if least is not None:
        yield _least(least)
    if use is not None and ran is not None:
        over = "instructions' time" if ran.span_ns is None else "span of a run"
        yield f"MFU {100 * use.mfu:.1f}%, HFU {100 * use.hfu:.1f}% over the {over} (FLOPs modelled, time measured)"
    if program.unknown:
        many = "instruction whose" if program.unknown == 1 else "instructions whose"
        yield f"{program.unknown:,} {many} arithmetic is not known (custom calls): FLOPs are a lower bound"


def _least(least: LeastTime) -> str:
    mark = "" if least.exact else f"{AT_LEAST} "
    parts = _parts(least.by_bound, least.total_ns)
    return f"least time {mark}{format_ns(least.total_ns)} a run on {least.device}: bound by {parts} (modelled)"


_WORDS = {"unnamed": "added by XLA", "unknown": "what is not known"}


def _parts(parts: Mapping[Any, float], whole: float) -> str:
    """``'backward 65.1%, forward 34.5%'``, the largest first."""
    largest = sorted(parts, key=lambda name: -parts[name])
    said = [
        f"{_WORDS.get(name, name)} {format_share(parts[name], whole)}"
        for name in largest
        if whole and parts[name] / whole >= SMALL_PART
    ]
    return ", ".join(said)


def _known_by(programs: Sequence[Program]) -> str:
    said = []
    if any(one.execution is not None for one in programs):
        said.append("runs and time measured")
    if any(one.flops is not None for one in programs):
        least = ", least time" if any(one.least is not None for one in programs) else ""
        said.append(f"FLOPs, bytes{least} modelled")
    kinds = {one.peak_known_by for one in programs if one.peak_known_by is not None}
    if kinds == {"assigned"}:
        said.append("peak memory as XLA assigned it")
    elif kinds:
        said.append("peak memory as XLA assigned it, ~ modelled" if "assigned" in kinds else "peak memory modelled (~)")
    return "; ".join(said)


def _notes(section: ProgramsSection) -> Iterator[str]:
    recorded = [one for one in section.programs if one.module_index is not None]
    if recorded and all(one.least is None for one in recorded):
        platforms = {one.platform for one in recorded} - {None}
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
