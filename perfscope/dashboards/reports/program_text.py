"""Compiled programs on a terminal: short by default, every list with ``-v``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.text_tables import fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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
