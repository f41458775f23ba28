"""Memories in a comment on a pull request: the peak of each open, the tables folded away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.markdown_text import escape, in_html
from perfscope.dashboards.reports.program_markdown import cells_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.memory_rows import MemoriesView, MemoryView

MOST_MEMORIES = 4
"""Memories in a comment: an overview, the other formats hold all."""

MOST_ROWS = 8
"""Modules, lines and ranks in a comment."""


def memory_details(view: MemoriesView) -> str:
    """A folded block for each memory; its summary is its peak."""
    memories = [one for one in view.memories[:MOST_MEMORIES] if not one.minor]
    parts = [part for one in memories for part in _memory(one)]
    left = view.memories_left + len(view.memories) - len(memories)
    if left:
        parts.append(f"and {left:,} more memor{'y' if left == 1 else 'ies'}, with lower peaks\n")
    return "\n".join([*parts, *(f"{escape(note)}\n" for note in view.notes)])


def _memory(one: MemoryView) -> Iterator[str]:
    yield f"<details><summary>{in_html(f'{one.title}: {one.headline}')}</summary>\n"
    if one.categories:
        yield cells_table(one.categories)
    for holders in (one.modules, one.lines):
        if holders is not None:
            yield cells_table(holders.rows[:MOST_ROWS])
            if left := holders.left(MOST_ROWS):
                yield f"- {left}"
    if one.others:
        yield cells_table(one.others[:MOST_ROWS])
    more = one.others_left + len(one.others[MOST_ROWS:])
    if more:
        yield f"- and {more:,} more, with lower peaks"
    yield from (f"- {escape(said)}" for said in (*one.facts, *one.notes))
    yield "</details>"
