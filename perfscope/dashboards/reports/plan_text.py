"""A plan of a PyTorch program on a terminal: short by default, every list with ``-v``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.text_tables import fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.dashboards.reports.plan_rows import Cells, PlanView

FEW_GRAPHS = 4
FEW_COLLECTIVES = 6
FEW_KERNELS = 6
FEW_LINES = 3

_GIVE_WAY = (
    "phase",
    "beside it",
    "blocks",
    "block size",
    "asks for it",
    "sizes",
    "nodes",
    "way",
    "FLOPs",
    "of",
    "computes",
    "at",
    "registers",
)
"""Columns that go, in this order, where the terminal is too narrow."""


def plan_part(view: PlanView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """A step eagerly and compiled, graphs, the kernels that move most. Ends with an empty line."""
    if view.headline:
        yield f"  {view.title}"
        yield hanging(view.headline)
    if view.steps:
        yield _table(view.steps, width)
        yield ""
    for rows in (view.peaks, view.holders):
        if rows:
            yield _table(rows, width)
            yield ""
    yield from _list(view.exchanges, FEW_COLLECTIVES, width, "lines of collectives", verbose=verbose)
    if view.exchanged:
        yield from map(hanging, view.exchanged)
        yield ""
    yield from _list(view.graphs, FEW_GRAPHS, width, "graphs", verbose=verbose)
    yield from _list(view.kernels, FEW_KERNELS, width, "kernels, which move less", verbose=verbose)
    for sentences in (view.breaks, view.apart, view.notes):
        few = sentences if verbose else sentences[:FEW_LINES]
        yield from map(hanging, few)
        if len(few) < len(sentences):
            yield f"    and {len(sentences) - len(few):,} more: -v shows all"
    if verbose:
        yield from map(hanging, view.left)
    yield ""


def _list(rows: Sequence[Cells], few: int, width: int, what: str, *, verbose: bool) -> Iterator[RenderableType]:
    shown = rows if verbose else rows[:few]
    if not shown:
        return
    yield _table(_filled(shown), width)
    if len(shown) < len(rows):
        yield f"    and {len(rows) - len(shown):,} more {what}: -v shows all"
    yield ""


def _filled(rows: Sequence[Cells]) -> list[Cells]:
    """Without columns that no row fills."""
    kept = {name for cells in rows for name, text in cells if text}
    return [tuple(cell for cell in cells if cell[0] in kept) for cells in rows]


def _table(rows: Sequence[Cells], width: int) -> RenderableType:
    return table_of(fitting([dict(cells) for cells in rows], _GIVE_WAY, width))
