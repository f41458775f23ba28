"""A sweep on a terminal: what follows from it, and every variant with the front marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.reports.sweep_rows import facts, headline, rows_of
from perfscope.dashboards.reports.text_page import WIDTH, printed
from perfscope.dashboards.reports.text_tables import hanging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.dashboards.reports.sweep_document import Sweep


def render(sweep: Sweep, *, width: int = WIDTH, color: bool = False) -> str:
    """The sweep as text for ``width`` columns."""
    return printed(lambda columns: _parts(sweep), width=width, color=color)


def _parts(sweep: Sweep) -> Iterator[RenderableType]:
    yield Text(f"perfscope: {headline(sweep)}", style="bold")
    yield from (Padding(Text(fact), (0, 0, 0, 2)) for fact in facts(sweep))
    if sweep.said:
        yield ""
        yield from (hanging(one) for one in sweep.said)
    yield ""
    yield _table(sweep)
    if sweep.notes:
        yield ""
        yield from (hanging(note) for note in sweep.notes)


def _table(sweep: Sweep) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for axis in sweep.axes:
        table.add_column(axis.name, justify="right" if axis.kind == "size" else "left", no_wrap=True)
    for name in ("step, modelled", "peak", "of memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("", overflow="fold", ratio=1)
    apart = [at for at, axis in enumerate(sweep.axes) if axis.kind != "choice"]
    last: tuple[str, ...] | None = None
    for row in rows_of(sweep):
        group = tuple(row.settings[at] for at in apart)
        if last is not None and group != last and len(apart) < len(sweep.axes):
            table.add_row()
        last = group
        cells = (">" if row.on_front else "", *row.settings, row.step, row.peak, row.share, row.fits, row.note)
        table.add_row(*map(Text, cells), style="bold" if row.on_front else "")
    return Padding(table, (0, 0, 0, 2))
