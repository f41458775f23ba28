"""Memories on a terminal: the peak in a line and who holds it; every list with ``-v``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from perfscope.dashboards.reports.text_tables import INDENT, fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.dashboards.reports.memory_rows import HolderTable, MemoriesView, MemoryView

FEW_MEMORIES = 2
"""Memories without ``-v``: a device's, and the program's or the host's beside it."""

FEW_CATEGORIES = 5
"""Categories without ``-v``: the others are smaller still."""

FEW_NOTES = 2
"""Notes without ``-v``."""

MOST_ROWS = 10
"""Modules and lines with ``-v``; the JSON report holds twice as many."""

_GIVE_WAY = ("known by", "blocks", "there")
"""Columns that go, in this order, where the terminal is too narrow."""


def memory_section(view: MemoriesView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Each memory's peak, and with ``-v`` its modules, lines and ranks. Ends with an empty line."""
    memories = view.memories if verbose else [one for one in view.memories[:FEW_MEMORIES] if not one.minor]
    for one in memories:
        yield from _memory(one, width, verbose=verbose)
        yield ""
    left = view.memories_left + len(view.memories) - len(memories)
    if left:
        yield f"    and {left:,} more memor{'y' if left == 1 else 'ies'}, with lower peaks"
        yield ""
    for note in view.notes:
        yield hanging(note)
        yield ""


def _memory(one: MemoryView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield _lead(f"{one.title}: {one.headline}")
    rows = one.categories if verbose else one.categories[:FEW_CATEGORIES]
    if rows:
        yield table_of(fitting([dict(cells) for cells in rows], _GIVE_WAY, width))
    if len(rows) < len(one.categories):
        yield f"    and {len(one.categories) - len(rows)} more categories, which hold less"
    yield hanging("; ".join(one.facts))
    yield from map(hanging, one.notes if verbose else one.notes[:FEW_NOTES])
    if not verbose:
        return
    for holders in (one.modules, one.lines):
        if holders is not None:
            yield ""
            yield from _holders(holders, width)
    if one.others:
        yield ""
        yield table_of(fitting([dict(cells) for cells in one.others], ("phase", "step"), width))
        if one.others_left:
            yield f"    and {one.others_left:,} more, with lower peaks"


def _lead(text: str) -> RenderableType:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, INDENT))


def _holders(holders: HolderTable, width: int) -> Iterator[RenderableType]:
    rows: Sequence[tuple[tuple[str, str], ...]] = holders.rows[:MOST_ROWS]
    yield table_of(fitting([dict(cells) for cells in rows], ("blocks",), width))
    if left := holders.left(MOST_ROWS):
        yield f"    {left}"
