"""Plans for the memory of a step on a terminal: the one to take, its code, and all that are worth having."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.reports.advice_verified_rows import COLUMNS, NOTE, verified_rows
from perfscope.dashboards.reports.text_page import WIDTH, printed
from perfscope.dashboards.reports.text_tables import hanging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.dashboards.reports.advice_plan_rows import PlanRow, PlansView

BAR = 12
"""Characters of a whole bar."""

BAR_FROM = 100
"""Columns from which the peaks are drawn and the step is told: in fewer the words of the plan need the room."""


def render(view: PlansView, *, width: int = WIDTH, color: bool = False) -> str:
    """The plans as text for ``width`` columns."""
    return printed(lambda columns: _parts(view, columns), width=width, color=color)


def _parts(view: PlansView, width: int) -> Iterator[RenderableType]:
    yield Text(f"perfscope: {view.headline}", style="bold")
    yield from (Padding(Text(fact), (0, 0, 0, 2)) for fact in view.facts)
    yield ""
    yield _labelled("do", view.verdict)
    if view.code:
        yield ""
        yield from (Text(f"      {line}") for line in view.code)
    yield ""
    yield _table(view, width)
    yield ""
    yield from _verified(view)
    yield from (hanging(note) for note in view.notes)


def _labelled(label: str, text: str) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(f"  {label}", style="dim"), Text(text, style="bold"))
    return table


def _table(view: PlansView, width: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    bars, fits = width >= BAR_FROM, view.plans.budget_bytes is not None
    if bars:
        table.add_column("", no_wrap=True, width=BAR)
    names = ("peak", "change", "step", "added") if width >= BAR_FROM else ("peak", "change", "added")
    for name in names:
        table.add_column(name, justify="right", overflow="fold", max_width=18)
    if fits:
        table.add_column("budget", no_wrap=True)
    table.add_column("plan (predicted)", overflow="fold", ratio=1)
    for row in view.rows:
        cells = [Text(_mark(row))]
        if bars:
            cells.append(Text("█" * max(1, round(BAR * row.share)), style="green" if row.recommended else "dim"))
        cells += [Text(str(getattr(row, name))) for name in names]
        if fits:
            cells.append(Text(row.fits))
        table.add_row(*cells, Text(row.words + (" (today)" if row.today else "")), style=_style(row))
    return Padding(table, (0, 0, 0, 2))


def _verified(view: PlansView) -> Iterator[RenderableType]:
    """Plans that were compiled, if it was asked for."""
    if view.verified is None:
        return
    rows = verified_rows(view.plans.model, view.verified)
    if not rows:
        yield Text("  nothing to verify: no plan but today's")
        yield ""
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in COLUMNS:
        words = name in ("plan", "--checkpoint")
        table.add_column(
            name, justify="left" if words else "right", overflow="fold", ratio=1 if name == "plan" else None
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row.cells))
    yield Text("  verified", style="bold")
    yield Padding(table, (0, 0, 0, 2))
    yield from (hanging(f"Not compiled: {row.cells[0]}: {row.reason}.") for row in rows if row.reason)
    yield hanging(NOTE)
    yield ""


def _mark(row: PlanRow) -> str:
    return ">" if row.recommended else ""


def _style(row: PlanRow) -> str:
    return "bold" if row.recommended else ""
