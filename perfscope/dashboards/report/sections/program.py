"""The compiled programs of an analysis as rows and sentences, decided once for every report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.hot_rows import (
    NAME_LIMIT,
    NAMES,
    WORDS,
    HotTable,
    hot_title,
    instruction_table,
    place_table,
)
from perfscope.dashboards.report.html_page import card, table
from perfscope.dashboards.report.markdown_text import code, escape, in_html, markdown_table
from perfscope.dashboards.report.svg import share_bar
from perfscope.dashboards.report.text_tables import fitting, hanging, table_of
from perfscope.model.units import format_bytes, format_count, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.programs import Execution, HotSpots, LeastTime, Program
    from perfscope.analyzers.sections.programs import ProgramsSection
    from perfscope.dashboards.report.hot_rows import HotTable


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
    rows = tuple(
        _program(program, section) for program in section.programs if program.execution is not None or not section.ran
    )
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
    texts = [
        f"{_WORDS.get(name, name)} {format_share(parts[name], whole)}"
        for name in largest
        if whole and parts[name] / whole >= SMALL_PART
    ]
    return ", ".join(texts)


def _known_by(programs: Sequence[Program]) -> str:
    said = []
    if any(program.execution is not None for program in programs):
        said.append("runs and time measured")
    if any(program.flops is not None for program in programs):
        least = ", least time" if any(program.least is not None for program in programs) else ""
        said.append(f"FLOPs, bytes{least} modelled")
    kinds = {program.peak_known_by for program in programs if program.peak_known_by is not None}
    if kinds == {"assigned"}:
        said.append("peak memory as XLA assigned it")
    elif kinds:
        said.append("peak memory as XLA assigned it, ~ modelled" if "assigned" in kinds else "peak memory modelled (~)")
    return "; ".join(said)


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


# Compiled programs in the JSON report.


def programs_document(section: ProgramsSection) -> dict[str, Any]:
    """The section as dicts and lists; times of models are floats, measured ones integers."""
    return {
        "items": [_program_program_formats(program) for program in section.programs],
        "left": section.programs_left,
        "ran": section.ran,
        "instructions_ns": section.instructions_ns,
        "hot_spots": [_hot_spots(spots) for spots in section.hot_spots],
        "hot_spots_left": section.spots_left,
        "problems": list(section.problems),
    }


def _program_program_formats(program: Program) -> dict[str, Any]:
    ran, least, use = program.execution, program.least, program.utilization
    return {
        "name": program.name,
        "program_id": program.program_id,
        "rank": program.rank,
        "platform": program.platform,
        "recorded": program.module_index is not None,
        "execution": None if ran is None else asdict(ran),
        "flops": program.flops,
        "bytes": program.bytes,
        "exact": program.exact,
        "unknown_instructions": program.unknown,
        "flops_by_phase": dict(program.flops_by_phase),
        "peak_bytes": program.peak_bytes,
        "peak_known_by": program.peak_known_by,
        "least": None
        if least is None
        else {
            "device": least.device,
            "assumed": least.assumed,
            "least_ns": least.total_ns,
            "exact": least.exact,
            "bound": least.bound,
            "by_bound_ns": dict(least.by_bound),
        },
        "utilization": None if use is None else asdict(use),
    }


def _hot_spots(spots: HotSpots) -> dict[str, Any]:
    return {
        "rank": spots.rank,
        "program": spots.program,
        "basis": spots.basis,
        "total_ns": spots.total_ns,
        "unmatched_ns": spots.unmatched_ns,
        "instructions": [asdict(row) for row in spots.instructions],
        "lines": [asdict(line) for line in spots.lines],
        "scopes": [asdict(scope) for scope in spots.scopes],
        "left": {name: asdict(left) for name, left in spots.left.items()},
    }


# Compiled programs on a terminal: short by default, every list with ``-v``.


FEW_PROGRAMS = 3
"""Programs without ``-v``: the step, and at most what stands beside it."""

FEW_LINES = 5
"""Source lines without ``-v``: findings come first on the one screen."""

MOST_ROWS = 10
"""Rows of each list with ``-v``; the JSON report holds twice as many."""

_GIVE_WAY = ("bound by", "MFU", "bytes a run", "least time", "peak memory")
"""Columns of programs that go, in this order, where the terminal is too narrow; the sentences below say most of it."""

_HOT_GIVE_WAY = ("mainly", "op", "calls", "roof", "instructions", "headroom")
"""The same for lines, scopes and instructions."""


def programs_section(view: ProgramsView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """The programs, a sentence or two on each, and where the time goes. Ends with an empty line."""
    rows = view.rows[: MOST_ROWS if verbose else FEW_PROGRAMS]
    if rows:
        held = [{name: cell for name, cell in row.cells() if name in view.columns} for row in rows]
        yield table_of(fitting(held, _GIVE_WAY, width))
        for row in rows[: len(rows) if verbose else 1]:
            lead = f"{row.name}: " if len(rows) > 1 else ""
            yield from (hanging(lead + detail) for detail in row.details)
        left = view.rows_left + len(view.rows) - len(rows)
        if left:
            yield f"    and {left:,} more{view.why_left}"
        yield from (hanging(note) for note in (view.known_by, *view.notes) if note)
        yield ""
    elif view.notes:
        yield from (hanging(note) for note in view.notes)
        yield ""
    if view.lines is not None:
        yield f"  {view.hot_title}"
        tables = (view.lines, view.scopes, view.instructions) if verbose else (view.lines,)
        for index, table in enumerate(tables):
            if table is not None:
                yield from ("",) * bool(index)
                yield from _hot(table, MOST_ROWS if verbose else FEW_LINES, width)
        yield ""


def _hot(table: HotTable, most: int, width: int) -> Iterator[RenderableType]:
    yield table_of(fitting([dict(row.cells) for row in table.rows[:most]], _HOT_GIVE_WAY, width))
    if table.left and most >= len(table.rows):
        yield f"    {table.left}"


# Compiled programs in a comment on a pull request: one line open, the tables folded away.


MOST_PROGRAMS = 5
"""Programs in a comment: an overview, the other formats hold all."""

PROGRAM_MARKDOWN_MOST_ROWS = 8
"""Source lines and instructions in a comment."""


def programs_details(view: ProgramsView) -> str:
    """A folded block; its summary tells how many programs and the first place of the time."""
    parts = [f"<details><summary>{in_html(_summary(view))}</summary>\n", *_body(view), "</details>"]
    return "\n".join(parts)


def _summary(view: ProgramsView) -> str:
    count = len(view.rows) + view.rows_left
    text = f"{count:,} compiled program{'' if count == 1 else 's'}"
    if view.lines is None or not view.lines.rows:
        return text
    cells = dict(view.lines.rows[0].cells)
    return f"{text}; {view.hot_title}; most at {cells['source line']} ({cells['share']})"


def _body(view: ProgramsView) -> Iterator[str]:
    rows = view.rows[:MOST_PROGRAMS]
    if rows:
        yield cells_table([tuple((name, dict(row.cells())[name]) for name in view.columns) for row in rows])
    for row in rows:
        if row.details:
            lead = f"{code(row.name)}: " if len(rows) > 1 else ""
            yield f"- {lead}{escape('. '.join(row.details))}"
    for note in (view.known_by, *view.notes):
        if note:
            yield f"- {escape(note)}"
    left = view.rows_left + len(view.rows) - len(rows)
    if left:
        yield f"- and {left:,} more{view.why_left}"
    yield ""
    for hot in (view.lines, view.instructions):
        if hot is not None and hot.rows:
            yield f"{escape(_title(view, hot))}\n"
            yield cells_table([row.cells for row in hot.rows[:PROGRAM_MARKDOWN_MOST_ROWS]])


def _title(view: ProgramsView, hot: HotTable) -> str:
    return view.hot_title if hot is view.lines else hot.title


def cells_table(rows: Iterable[tuple[tuple[str, str], ...]]) -> str:
    """A table of rows with the same columns; names as code, numbers to the right."""
    held = list(rows)
    names = [name for name, _ in held[0]]
    cells = [[_cell(name, text) for name, text in row] for row in held]
    return markdown_table(names, cells, "".join("l" if name in WORDS else "r" for name in names)) + "\n"


def _cell(name: str, text: str) -> str:
    if name in NAMES and text:
        return code(text)
    return escape(text) if name in WORDS else in_html(text).replace("~", "\\~")


# Compiled programs in the HTML report: a table that stacks on a phone, and bars for where the time goes.


FIRST_PROGRAMS = 5
"""Programs that stand open; the others are folded."""

MOST_NARROW = 6
"""Columns that stand side by side on a tablet."""

FIRST_ROWS = 8
"""Source lines that stand open."""


def programs_cards(view: ProgramsView) -> Iterator[str]:
    """The section's cards."""
    yield card("Compiled programs", "".join(_programs(view)))
    if view.lines is not None:
        yield card(view.hot_title[0].upper() + view.hot_title[1:], "".join(_hot_html_programs(view)))


def _programs(view: ProgramsView) -> Iterator[str]:
    rows = []
    for row in view.rows:
        cells = dict(row.cells())
        rows.append((row, _row([(name, cells[name]) for name in view.columns])))
    heads = [_head(name) for name in view.columns]
    if rows:
        yield table(heads, (drawn for _, drawn in rows[:FIRST_PROGRAMS]), kind="stacks")
    for row in view.rows[:FIRST_PROGRAMS]:
        if row.details:
            lead = f"<b>{escape_html(row.name)}</b> " if len(view.rows) > 1 else ""
            yield f'<p class="note">{lead}{escape_html(_sentences(row.details))}</p>'
    yield f'<p class="note">{escape_html(_sentences([note for note in (view.known_by, *view.notes) if note]))}</p>'
    if len(rows) > FIRST_PROGRAMS:
        more = table(heads, (drawn for _, drawn in rows[FIRST_PROGRAMS:]), kind="stacks")
        yield f"<details><summary>{len(rows) - FIRST_PROGRAMS} more programs</summary>{more}</details>"
    if view.rows_left:
        yield f'<p class="note">and {view.rows_left:,} more{view.why_left}</p>'


def _hot_html_programs(view: ProgramsView) -> Iterator[str]:
    if view.lines is not None:
        yield _hot_table(view.lines, 0, FIRST_ROWS)
        if len(view.lines.rows) > FIRST_ROWS:
            rest = _hot_table(view.lines, FIRST_ROWS, len(view.lines.rows))
            yield f"<details><summary>{len(view.lines.rows) - FIRST_ROWS} more lines</summary>{rest}</details>"
    for other in (view.scopes, view.instructions):
        if other is not None:
            drawn = _hot_table(other, 0, len(other.rows))
            yield f"<details><summary>{escape_html(other.title)}</summary>{drawn}</details>"


def _hot_table(hot: HotTable, first: int, last: int) -> str:
    rows = hot.rows[first:last]
    heads = ["<td></td>", *(_head(name) for name, _ in rows[0].cells)]
    drawn = table(heads, (_row(row.cells, share_bar(row.share)) for row in rows), kind="stacks hot")
    left = f'<p class="note">{escape_html(hot.left)}</p>' if hot.left and last >= len(hot.rows) else ""
    return drawn + left


def html_cells_table(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A table of (column, cell) rows with the same columns, which stacks on a phone; a wide one on a tablet, too.

    Columns that no row fills are left out.
    """
    kept = {name for cells in rows for name, text in cells if text}
    filled = [[cell for cell in cells if cell[0] in kept] for cells in rows]
    kind = "stacks wide" if len(kept) > MOST_NARROW else "stacks"
    return table([_head(name) for name, _ in filled[0]], map(_row, filled), kind=kind)


def _head(name: str) -> str:
    return f'<th class="{_side(name)}">{escape_html(name)}</th>'


def _side(name: str) -> str:
    return "t" if name in WORDS else "n"


def _row(cells: Iterable[tuple[str, str]], bar: str = "") -> str:
    drawn = [f'<td class="share">{bar}</td>'] if bar else []
    for name, cell in cells:
        text = (
            f"<code>{escape_html(cell).replace('/', '/<wbr>')}</code>" if name in NAMES and cell else escape_html(cell)
        )
        kind = f"{_side(name)} at" if name == "at" else _side(name)
        drawn.append(f'<td class="{kind}" data-name="{escape_html(name)}">{text}</td>')
    return f"<tr>{''.join(drawn)}</tr>"


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in texts)
