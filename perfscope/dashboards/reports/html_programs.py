"""Compiled programs in the HTML report: a table that stacks on a phone, and bars for where the time goes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.hot_rows import NAMES, WORDS
from perfscope.dashboards.reports.html_findings import card, table
from perfscope.dashboards.reports.svg import share_bar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perfscope.dashboards.reports.hot_rows import HotTable
    from perfscope.dashboards.reports.program_rows import ProgramsView

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
        yield card(view.hot_title[0].upper() + view.hot_title[1:], "".join(_hot(view)))


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
            lead = f"<b>{escape(row.name)}</b> " if len(view.rows) > 1 else ""
            yield f'<p class="note">{lead}{escape(_sentences(row.details))}</p>'
    yield f'<p class="note">{escape(_sentences([note for note in (view.known_by, *view.notes) if note]))}</p>'
    if len(rows) > FIRST_PROGRAMS:
        more = table(heads, (drawn for _, drawn in rows[FIRST_PROGRAMS:]), kind="stacks")
        yield f"<details><summary>{len(rows) - FIRST_PROGRAMS} more programs</summary>{more}</details>"
    if view.rows_left:
        yield f'<p class="note">and {view.rows_left:,} more{view.why_left}</p>'


def _hot(view: ProgramsView) -> Iterator[str]:
    if view.lines is not None:
        yield _hot_table(view.lines, 0, FIRST_ROWS)
        if len(view.lines.rows) > FIRST_ROWS:
            rest = _hot_table(view.lines, FIRST_ROWS, len(view.lines.rows))
            yield f"<details><summary>{len(view.lines.rows) - FIRST_ROWS} more lines</summary>{rest}</details>"
    for other in (view.scopes, view.instructions):
        if other is not None:
            drawn = _hot_table(other, 0, len(other.rows))
            yield f"<details><summary>{escape(other.title)}</summary>{drawn}</details>"


def _hot_table(hot: HotTable, first: int, last: int) -> str:
    rows = hot.rows[first:last]
    heads = ["<td></td>", *(_head(name) for name, _ in rows[0].cells)]
    drawn = table(heads, (_row(row.cells, share_bar(row.share)) for row in rows), kind="stacks hot")
    left = f'<p class="note">{escape(hot.left)}</p>' if hot.left and last >= len(hot.rows) else ""
    return drawn + left


def cells_table(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A table of (column, cell) rows with the same columns, which stacks on a phone; a wide one on a tablet, too.

    Columns that no row fills are left out.
    """
    kept = {name for cells in rows for name, text in cells if text}
    filled = [[cell for cell in cells if cell[0] in kept] for cells in rows]
    kind = "stacks wide" if len(kept) > MOST_NARROW else "stacks"
    return table([_head(name) for name, _ in filled[0]], map(_row, filled), kind=kind)


def _head(name: str) -> str:
    return f'<th class="{_side(name)}">{escape(name)}</th>'


def _side(name: str) -> str:
    return "t" if name in WORDS else "n"


def _row(cells: Iterable[tuple[str, str]], bar: str = "") -> str:
    drawn = [f'<td class="share">{bar}</td>'] if bar else []
    for name, cell in cells:
        text = f"<code>{escape(cell).replace('/', '/<wbr>')}</code>" if name in NAMES and cell else escape(cell)
        kind = f"{_side(name)} at" if name == "at" else _side(name)
        drawn.append(f'<td class="{kind}" data-name="{escape(name)}">{text}</td>')
    return f"<tr>{''.join(drawn)}</tr>"


def _sentences(said: Iterable[str]) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in said)
