"""Compiled programs in a comment on a pull request: one line open, the tables folded away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.hot_rows import NAMES, WORDS
from perfscope.dashboards.reports.markdown_text import code, escape, in_html, markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perfscope.dashboards.reports.hot_rows import HotTable
    from perfscope.dashboards.reports.program_rows import ProgramsView

MOST_PROGRAMS = 5
"""Programs in a comment: an overview, the other formats hold all."""

MOST_ROWS = 8
"""Source lines and instructions in a comment."""


def programs_details(view: ProgramsView) -> str:
    """A folded block; its summary tells how many programs and the first place of the time."""
    parts = [f"<details><summary>{in_html(_summary(view))}</summary>\n", *_body(view), "</details>"]
    return "\n".join(parts)


def _summary(view: ProgramsView) -> str:
    count = len(view.rows) + view.rows_left
    said = f"{count:,} compiled program{'' if count == 1 else 's'}"
    if view.lines is None or not view.lines.rows:
        return said
    cells = dict(view.lines.rows[0].cells)
    return f"{said}; {view.hot_title}; most at {cells['source line']} ({cells['share']})"


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
            yield cells_table([row.cells for row in hot.rows[:MOST_ROWS]])


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
