"""Compiled programs on a terminal: short by default, every list with ``-v``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.reports.hot_rows import WORDS
from perfscope.dashboards.reports.summary import tail

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from perfscope.dashboards.reports.hot_rows import HotTable
    from perfscope.dashboards.reports.program_rows import ProgramsView

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

_CUT = ("at", "source line", "scope")
"""Columns that are cut at their beginning where all that is left is too wide still."""

NARROWEST_PLACE = 16

INDENT, GAP = 2, 2

_SHORT = {
    "program": "compiled program", "FLOPs a run": "FLOPs", "bytes a run": "bytes", "peak memory": "peak",
    "instructions": "instr.",
}  # fmt: skip


def programs_section(view: ProgramsView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """The programs, a sentence or two on each, and where the time goes. Ends with an empty line."""
    rows = view.rows[: MOST_ROWS if verbose else FEW_PROGRAMS]
    if rows:
        held = [{name: cell for name, cell in row.cells() if name in view.columns} for row in rows]
        yield _table(_fitting(held, _GIVE_WAY, width))
        for row in rows[: len(rows) if verbose else 1]:
            lead = f"{row.name}: " if len(rows) > 1 else ""
            yield from (_hanging(lead + detail) for detail in row.details)
        left = view.rows_left + len(view.rows) - len(rows)
        if left:
            yield f"    and {left:,} more{view.why_left}"
        yield from (_hanging(note) for note in (view.known_by, *view.notes) if note)
        yield ""
    elif view.notes:
        yield from (_hanging(note) for note in view.notes)
        yield ""
    if view.lines is not None:
        yield f"  {view.hot_title}"
        tables = (view.lines, view.scopes, view.instructions) if verbose else (view.lines,)
        for index, table in enumerate(tables):
            if table is not None:
                yield from ("",) * bool(index)
                yield from _hot(table, MOST_ROWS if verbose else FEW_LINES, width)
        yield ""


def _fitting(rows: Sequence[Mapping[str, str]], give_way: Sequence[str], width: int) -> list[dict[str, str]]:
    """The columns that the width holds, and places cut to what is left for them."""
    widest = {name: max(len(_SHORT.get(name, name)), *(len(row[name]) for row in rows)) for name in rows[0]}
    kept = list(rows[0])

    def missing() -> int:
        return INDENT + sum(widest[one] + GAP for one in kept) - GAP - width

    for name in give_way:
        if missing() > 0 and name in kept:
            kept.remove(name)
    place = next((name for name in _CUT if name in kept), None)
    limit = 0 if place is None or missing() <= 0 else max(NARROWEST_PLACE, widest[place] - missing())
    return [{name: tail(row[name], limit) if limit and name == place else row[name] for name in kept} for row in rows]


def _hot(table: HotTable, most: int, width: int) -> Iterator[RenderableType]:
    yield _table(_fitting([dict(row.cells) for row in table.rows[:most]], _HOT_GIVE_WAY, width))
    if table.left and most >= len(table.rows):
        yield f"    {table.left}"


def _table(rows: Sequence[Mapping[str, str]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for head in rows[0]:
        left = head in WORDS
        table.add_column(_SHORT.get(head, head), justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return Padding(table, (0, 0, 0, INDENT))


def _hanging(text: str) -> RenderableType:
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text("    "), Text(text, style="dim"))
    return table
