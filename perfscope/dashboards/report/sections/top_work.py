"""The costliest kernels, ops, modules and lines, in every report format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.analyzers.time import NOT_KNOWN
from perfscope.dashboards.report.html_page import card, table
from perfscope.dashboards.report.markdown_text import code, in_html, markdown_table
from perfscope.dashboards.report.renderers.values import place_end
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perfscope.analyzers.time import TopWork, WorkRow

FIRST_ROWS = 5
"""Rows of the first table on one screen."""

MOST_ROWS = 20
"""Rows of each table where all is shown."""

FIRST_PLACE = 5
"""The columns before it are the name and numbers."""

NAME_LIMIT = 56
NAME_COLUMNS = 28
NUMBER_COLUMNS = 34
OP_COLUMNS = 14
PLACE_LIMIT = 36
PLACE_COLUMNS = (12, 30)
"""Least and most columns of a place in a terminal: its end tells most."""

NARROW = 100
"""Below so many columns the place stands without the op."""

_TITLES = {"kernels": "kernel", "ops": "op", "modules": "module", "lines": "source line"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTable:
    """One kind of work."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopView:
    """What the work is of, and a table a kind; the first is the one to begin with."""

    title: str
    tables: tuple[TopTable, ...]


def top_view(top: TopWork | None) -> TopView | None:
    """``None`` where nothing is known. Kinds of which no name is known are left out."""
    if top is None or not top.total_ns:
        return None
    kinds = [(kind, getattr(top, kind)) for kind in _TITLES]
    tables = tuple(_table(kind, rows, top) for kind, rows in kinds if any(row.name != NOT_KNOWN for row in rows))
    if not tables:
        return None
    what = "ops of the host by the time in them alone" if top.on_host else "work of the devices"
    over = "mean of a step" if top.steps else "of the whole capture"
    return TopView(title=f"{what}, {over}; shares of {format_ns(top.total_ns // max(1, top.steps))}", tables=tables)


def _table(kind: str, rows: tuple[WorkRow, ...], top: TopWork) -> TopTable:
    steps = max(1, top.steps)
    heads = (_TITLES[kind], "time", "share", "calls", "mean", *(("line", "launched by") if kind == "kernels" else ()))
    return TopTable(heads=heads, rows=tuple(_row(kind, row, top, steps) for row in rows[:MOST_ROWS]))


def _row(kind: str, row: WorkRow, top: TopWork, steps: int) -> tuple[str, ...]:
    per_step = row.calls / steps
    cells = (
        shorten(sanitize(row.name), NAME_LIMIT),
        format_ns(row.total_ns // steps),
        f"{100 * row.total_ns / top.total_ns:.1f}%",
        f"{per_step:,.0f}" if per_step == int(per_step) else f"{per_step:,.1f}",
        format_ns(row.total_ns // max(1, row.calls)),
    )
    if kind != "kernels":
        return cells
    op = "" if row.op == NOT_KNOWN else shorten(sanitize(row.op), PLACE_LIMIT)
    return (*cells, place_end(sanitize(row.line), PLACE_LIMIT), op)


def top_text(view: TopView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """For a terminal: the first rows of the first table, all with ``verbose``."""
    tables = view.tables if verbose else view.tables[:1]
    for number, item in enumerate(tables):
        if number == 0:
            yield Padding(Text(f"top {item.heads[0]}s: {view.title}"), (0, 0, 0, 2))
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        grid.add_column(item.heads[0], no_wrap=True, overflow="ellipsis", max_width=NAME_COLUMNS)
        columns = len(item.heads) if width >= NARROW else FIRST_PLACE + 1
        place = width - NAME_COLUMNS - NUMBER_COLUMNS - (OP_COLUMNS + 2 if columns == len(item.heads) else 0) - 6
        widths = (max(PLACE_COLUMNS[0], min(place, PLACE_COLUMNS[1])), OP_COLUMNS)
        for column, head in enumerate(item.heads[1:columns], start=1):
            if column < FIRST_PLACE:
                widest = max(len(row[column]) for row in item.rows)
                grid.add_column(head, justify="right", no_wrap=True, min_width=max(len(head), widest))
            else:
                grid.add_column(head, no_wrap=True, overflow="ellipsis", width=widths[column - FIRST_PLACE])
        for row in item.rows if verbose else item.rows[:FIRST_ROWS]:
            places = [place_end(cell, most) for cell, most in zip(row[FIRST_PLACE:columns], widths, strict=False)]
            grid.add_row(*map(Text, (*row[:FIRST_PLACE], *places)))
        yield Padding(grid, (0, 0, 0, 4))
        yield ""


def top_markdown(view: TopView) -> str:
    """Folded away, one table a kind."""
    parts = [f"\n<details><summary>Where the work is: {in_html(view.title)}</summary>\n"]
    for item in view.tables:
        rows = [
            (code(row[0]), *row[1:FIRST_PLACE], *(code(cell) if cell else "" for cell in row[FIRST_PLACE:]))
            for row in item.rows
        ]
        parts.append(markdown_table(item.heads, rows, "lrrrr" + "l" * (len(item.heads) - FIRST_PLACE)) + "\n")
    return "\n".join([*parts, "</details>\n"])


def top_card(view: TopView) -> str:
    """As a card; all tables but the first are folded."""
    drawn = []
    for number, item in enumerate(view.tables):
        body = table(_html_heads(item.heads), map(_html_row, item.rows))
        drawn.append(body if number == 0 else f"<details><summary>by {item.heads[0]}</summary>{body}</details>")
    return card("Where the work is", f"<p>{escape_html(view.title)}</p>{''.join(drawn)}")


def _html_row(row: tuple[str, ...]) -> str:
    numbers = "".join(f'<td class="n">{escape_html(cell)}</td>' for cell in row[1:FIRST_PLACE])
    places = "".join(f"<td><code>{escape_html(cell)}</code></td>" for cell in row[FIRST_PLACE:])
    return f"<tr><td><code>{escape_html(row[0])}</code></td>{numbers}{places}</tr>"


def _html_heads(heads: tuple[str, ...]) -> list[str]:
    numbers = [f'<th class="n">{head}</th>' for head in heads[1:FIRST_PLACE]]
    return [f"<th>{heads[0]}</th>", *numbers, *(f"<th>{head}</th>" for head in heads[FIRST_PLACE:])]


def top_document(top: TopWork | None) -> dict[str, Any] | None:
    """For the JSON report."""
    return None if top is None else asdict(top)
