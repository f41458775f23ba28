"""A plan of a PyTorch program in the HTML report."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.html_findings import card
from perfscope.dashboards.reports.html_programs import cells_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.dashboards.reports.plan_rows import Cells, PlanView

FIRST_COLLECTIVES = 8
FIRST_GRAPHS = 6
FIRST_KERNELS = 8
FIRST_LINES = 6


def plan_card(view: PlanView) -> str:
    """The section's card."""
    return card(f"torch.compile, {view.title}" if view.headline else view.title, "".join(_body(view)))


def _body(view: PlanView) -> Iterator[str]:
    if view.headline:
        yield f"<p>{escape(view.headline[:1].upper() + view.headline[1:])}.</p>"
    if view.steps:
        yield cells_table(view.steps)
    yield from (cells_table(rows) for rows in (view.peaks, view.holders) if rows)
    yield from _table(view.exchanges, FIRST_COLLECTIVES, "lines of collectives")
    if view.exchanged:
        yield _list(view.exchanged)
    yield from _table(view.graphs, FIRST_GRAPHS, "graphs")
    yield from _table(view.kernels, FIRST_KERNELS, "kernels, which move less")
    for sentences in (view.breaks, view.apart):
        yield _list(sentences[:FIRST_LINES])
        if sentences[FIRST_LINES:]:
            yield _folded(f"{len(sentences) - FIRST_LINES:,} more", _list(sentences[FIRST_LINES:]))
    notes = (*view.notes, *view.left)
    if notes:
        yield f'<p class="note">{escape(" ".join(f"{note[:1].upper()}{note[1:]}." for note in notes))}</p>'


def _table(rows: Sequence[Cells], few: int, what: str) -> Iterator[str]:
    if rows:
        yield cells_table(rows[:few])
    if rows[few:]:
        yield _folded(f"{len(rows) - few:,} more {what}", cells_table(rows[few:]))


def _list(said: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in said)}</ul>" if said else ""


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
