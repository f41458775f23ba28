"""Memories in the HTML report: the picture over time, who holds the peak, and the same in numbers."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.html_findings import card
from perfscope.dashboards.reports.html_programs import cells_table
from perfscope.dashboards.reports.memory_svg import legend, memory_chart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.memory_rows import HolderTable, MemoriesView, MemoryView

FIRST_MEMORIES = 4
"""Memories that have a card of their own; the others are folded."""


def memory_cards(view: MemoriesView) -> Iterator[str]:
    """A card for each memory."""
    first = [one for one in view.memories[:FIRST_MEMORIES] if not one.minor]
    for one in first:
        yield card(one.title, "".join(_memory(one)))
    rest = view.memories[len(first) :]
    said = [f"<details><summary>{escape(f'{one.title}: {one.headline}')}</summary>{''.join(_body(one))}</details>"
            for one in rest]  # fmt: skip
    if view.memories_left:
        said.append(f'<p class="note">and {view.memories_left:,} more, with lower peaks</p>')
    if said or view.notes:
        yield card("More memories" if view.memories else "Memory", "".join(said) + _list(view.notes))


def _memory(one: MemoryView) -> Iterator[str]:
    yield f"<p>{escape(one.headline[:1].upper() + one.headline[1:])}.</p>"
    if one.picture is not None:
        yield memory_chart(one.picture, f"{one.title}: {one.headline}. The same in numbers below.")
        yield f'<div class="legend">{legend(one.picture)}</div>'
    yield from _body(one)


def _body(one: MemoryView) -> Iterator[str]:
    if one.categories:
        yield cells_table(one.categories)
    yield _list((*one.facts, *one.notes))
    for holders in (one.modules, one.lines):
        if holders is not None:
            yield f"<details><summary>{escape(holders.title)}</summary>{_holders(holders)}</details>"
    if one.others:
        left = f'<p class="note">and {one.others_left:,} more, with lower peaks</p>' if one.others_left else ""
        yield f"<details><summary>side by side</summary>{cells_table(one.others)}{left}</details>"
    if one.picture is not None:
        yield f"<details><summary>the picture in numbers</summary>{cells_table(one.picture.moments)}</details>"


def _holders(holders: HolderTable) -> str:
    left = holders.left(len(holders.rows))
    return cells_table(holders.rows) + (f'<p class="note">{escape(left)}</p>' if left else "")


def _list(said: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in said)}</ul>" if said else ""
