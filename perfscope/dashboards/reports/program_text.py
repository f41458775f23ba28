"""Compiled programs on a terminal: short by default, every list with ``-v``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.dashboards.reports.program_rows import HotTable, ProgramsView

FEW_PROGRAMS = 3
"""Programs without ``-v``: the step, and at most what stands beside it."""

FEW_LINES = 5
"""Source lines without ``-v``: findings come first on the one screen."""

MOST_ROWS = 10
"""Rows of each list with ``-v``; the JSON report holds twice as many."""

_LEFT_ALIGNED = frozenset({"program", "source line", "scope", "instruction", "op", "mainly", "at", "bound by"})
_BESIDE = ("program", "runs", "time", "share", "FLOPs a run", "bytes a run", "peak memory")
"""Columns that 80 characters hold; the least time, its bound and MFU are in the sentences below."""
_SHORT = {"FLOPs a run": "FLOPs", "bytes a run": "bytes", "peak memory": "peak", "instructions": "instr."}


def programs_section(view: ProgramsView, *, verbose: bool) -> Iterator[RenderableType]:
    """The programs, a sentence or two on each, and where the time goes. Ends with an empty line."""
    rows = view.rows if verbose else view.rows[:FEW_PROGRAMS]
    if rows:
        columns = [name for name in view.columns if name in _BESIDE]
        cells = [[dict(row.cells())[name] for name in columns] for row in rows]
        yield _table(["compiled program" if name == "program" else name for name in columns], cells, indent=2)
        for row in rows if verbose else rows[:1]:
            lead = f"{row.name}: " if len(rows) > 1 else ""
            yield from (_hanging(lead + detail) for detail in row.details)
        left = view.rows_left + len(view.rows) - len(rows)
        if left:
            yield f"    and {left:,} more (not run, or with less time)"
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
                yield from _hot(table, MOST_ROWS if verbose else FEW_LINES)
        yield ""


def _hot(table: HotTable, most: int) -> Iterator[RenderableType]:
    rows = table.rows[:most]
    yield _table([name for name, _ in rows[0].cells], [[cell for _, cell in row.cells] for row in rows], indent=2)
    if table.left and most >= len(table.rows):
        yield f"  {table.left}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        name = head.removeprefix("compiled ")
        left = name in _LEFT_ALIGNED
        table.add_column(_SHORT.get(head, head), justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return Padding(table, (0, 0, 0, indent))


def _hanging(text: str) -> RenderableType:
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text("    "), Text(text, style="dim"))
    return table
