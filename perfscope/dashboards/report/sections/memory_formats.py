"""Memories in the JSON report."""

from __future__ import annotations

from dataclasses import asdict
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.markdown_text import escape, in_html
from perfscope.dashboards.report.sections.memory_picture import legend, memory_chart
from perfscope.dashboards.report.sections.program import cells_table, html_cells_table
from perfscope.dashboards.report.text_tables import INDENT, fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.memory import HeldCategory, Holders, Memory, Reserved
    from perfscope.analyzers.memory.holders import Holder
    from perfscope.analyzers.memory.picture import MemoryPicture
    from perfscope.analyzers.sections.memory import MemoryEntry, MemorySection, RankMemory
    from perfscope.dashboards.report.sections.memory import HolderTable, MemoriesView, MemoryView
    from perfscope.model.memory import SourceLine


def memory_document(section: MemorySection) -> dict[str, Any]:
    """The section as dicts and lists; positions are on the memory's own axis."""
    return {
        "items": [_entry(entry) for entry in section.entries],
        "left": section.entries_left,
        "problems": list(section.problems),
    }


def _entry(entry: MemoryEntry) -> dict[str, Any]:
    return {
        "source": entry.source,
        **_memory(entry.worst),
        "others": [_other(other) for other in entry.others],
        "others_left": entry.others_left,
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "rank": memory.rank,
        "space": memory.space,
        "label": memory.label,
        "known_from": memory.known_from,
        "basis": memory.basis,
        "of_driver": memory.of_driver,
        "axis": memory.axis,
        "first": memory.first,
        "last": memory.last,
        "peak_bytes": memory.peak_bytes,
        "peak_position": memory.peak_position,
        "phase": memory.phase.name.lower(),
        "step": memory.step,
        "op": memory.op,
        "where": _line(memory.line),
        "by_category": [_category(category) for category in memory.by_category],
        "by_module": _holders(memory.by_module),
        "by_line": _holders(memory.by_line),
        "unseen_bytes": memory.unseen_bytes,
        "reserved": None if memory.reserved is None else _reserved(memory.reserved),
        "capacity_bytes": memory.capacity_bytes,
        "headroom_bytes": memory.headroom_bytes,
        "out_of_memory": memory.out_of_memory,
        "failed_bytes": memory.failed_bytes,
        "unmatched": memory.unmatched,
        "growth": None if memory.growth is None else asdict(memory.growth),
        "notes": list(memory.notes),
        "picture": None if memory.picture is None else _picture(memory.picture),
    }


def _line(line: SourceLine | None) -> dict[str, Any] | None:
    return None if line is None else asdict(line)


def _category(category: HeldCategory) -> dict[str, Any]:
    return {
        "category": category.category.name.lower(),
        "bytes": category.bytes,
        "blocks": category.blocks,
        "known_by": category.known_by.name.lower(),
        "mostly_at": _line(category.place),
        "largest_name": category.name,
        "place_bytes": category.place_bytes,
    }


def _holders(holders: Holders) -> dict[str, Any]:
    return {
        "rows": [_held(row) for row in holders.rows],
        "left": holders.left,
        "left_bytes": holders.left_bytes,
    }


def _held(holder: Holder) -> dict[str, Any]:
    return {
        "name": holder.name,
        "bytes": holder.bytes,
        "blocks": holder.blocks,
        "members": holder.members,
        "where": _line(holder.line),
    }


def _reserved(reserved: Reserved) -> dict[str, Any]:
    return {**asdict(reserved), "fragmentation": reserved.fragmentation}


def _other(rank_memory: RankMemory) -> dict[str, Any]:
    return {**asdict(rank_memory), "phase": rank_memory.phase.name.lower()}


def _picture(picture: MemoryPicture) -> dict[str, Any]:
    return {
        "positions": picture.positions.tolist(),
        "bytes": {
            category.name.lower(): value
            for category, value in zip(picture.categories, picture.bytes.tolist(), strict=True)
        },
        "unseen_bytes": picture.unseen_bytes,
        "reserved": None if picture.reserved is None else picture.reserved.tolist(),
        "steps": [asdict(band) for band in picture.steps],
        "phases": [asdict(band) for band in picture.phases],
    }


# Memories on a terminal: the peak in a line and who holds it; every list with ``-v``.


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
    memories = view.memories if verbose else [memory for memory in view.memories[:FEW_MEMORIES] if not memory.minor]
    for memory in memories:
        yield from _memory_memory_text(memory, width, verbose=verbose)
        yield ""
    left = view.memories_left + len(view.memories) - len(memories)
    if left:
        yield f"    and {left:,} more memor{'y' if left == 1 else 'ies'}, with lower peaks"
        yield ""
    for note in view.notes:
        yield hanging(note)
        yield ""


def _memory_memory_text(memory_view: MemoryView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield _lead(f"{memory_view.title}: {memory_view.headline}")
    rows = memory_view.categories if verbose else memory_view.categories[:FEW_CATEGORIES]
    if rows:
        yield table_of(fitting([dict(cells) for cells in rows], _GIVE_WAY, width))
    if len(rows) < len(memory_view.categories):
        yield f"    and {len(memory_view.categories) - len(rows)} more categories, which hold less"
    yield hanging("; ".join(memory_view.facts))
    yield from map(hanging, memory_view.notes if verbose else memory_view.notes[:FEW_NOTES])
    if not verbose:
        return
    for holders in (memory_view.modules, memory_view.lines):
        if holders is not None:
            yield ""
            yield from _holders_memory_text(holders, width)
    if memory_view.others:
        yield ""
        yield table_of(fitting([dict(cells) for cells in memory_view.others], ("phase", "step"), width))
        if memory_view.others_left:
            yield f"    and {memory_view.others_left:,} more, with lower peaks"


def _lead(text: str) -> RenderableType:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, INDENT))


def _holders_memory_text(holders: HolderTable, width: int) -> Iterator[RenderableType]:
    rows: Sequence[tuple[tuple[str, str], ...]] = holders.rows[:MOST_ROWS]
    yield table_of(fitting([dict(cells) for cells in rows], ("blocks",), width))
    if left := holders.left(MOST_ROWS):
        yield f"    {left}"


# Memories in a comment on a pull request: the peak of each open, the tables folded away.


MOST_MEMORIES = 4
"""Memories in a comment: an overview, the other formats hold all."""

MEMORY_MARKDOWN_MOST_ROWS = 8
"""Modules, lines and ranks in a comment."""


def memory_details(view: MemoriesView) -> str:
    """A folded block for each memory; its summary is its peak."""
    memories = [memory for memory in view.memories[:MOST_MEMORIES] if not memory.minor]
    parts = [part for memory in memories for part in _memory_memory_markdown(memory)]
    left = view.memories_left + len(view.memories) - len(memories)
    if left:
        parts.append(f"and {left:,} more memor{'y' if left == 1 else 'ies'}, with lower peaks\n")
    return "\n".join([*parts, *(f"{escape(note)}\n" for note in view.notes)])


def _memory_memory_markdown(memory_view: MemoryView) -> Iterator[str]:
    yield f"<details><summary>{in_html(f'{memory_view.title}: {memory_view.headline}')}</summary>\n"
    if memory_view.categories:
        yield cells_table(memory_view.categories)
    for holders in (memory_view.modules, memory_view.lines):
        if holders is not None:
            yield cells_table(holders.rows[:MEMORY_MARKDOWN_MOST_ROWS])
            if left := holders.left(MEMORY_MARKDOWN_MOST_ROWS):
                yield f"- {left}"
    if memory_view.others:
        yield cells_table(memory_view.others[:MEMORY_MARKDOWN_MOST_ROWS])
    more = memory_view.others_left + len(memory_view.others[MEMORY_MARKDOWN_MOST_ROWS:])
    if more:
        yield f"- and {more:,} more, with lower peaks"
    yield from (f"- {escape(text)}" for text in (*memory_view.facts, *memory_view.notes))
    yield "</details>"


# Memories in the HTML report: the picture over time, who holds the peak, and the same in numbers.


FIRST_MEMORIES = 4
"""Memories that have a card of their own; the others are folded."""


def memory_cards(view: MemoriesView) -> Iterator[str]:
    """A card for each memory."""
    first = [memory for memory in view.memories[:FIRST_MEMORIES] if not memory.minor]
    for memory in first:
        yield card(memory.title, "".join(_memory_html_memory(memory)))
    rest = view.memories[len(first) :]
    titles = [escape_html(f"{memory.title}: {memory.headline}") for memory in rest]
    bodies = ["".join(_body(memory)) for memory in rest]
    texts = [f"<details><summary>{title}</summary>{body}</details>" for title, body in zip(titles, bodies, strict=True)]
    if view.memories_left:
        texts.append(f'<p class="note">and {view.memories_left:,} more, with lower peaks</p>')
    if texts or view.notes:
        yield card("More memories" if view.memories else "Memory", "".join(texts) + _list(view.notes))


def _memory_html_memory(memory_view: MemoryView) -> Iterator[str]:
    yield f"<p>{escape_html(memory_view.headline[:1].upper() + memory_view.headline[1:])}.</p>"
    if memory_view.picture is not None:
        yield memory_chart(
            memory_view.picture, f"{memory_view.title}: {memory_view.headline}. The same in numbers below."
        )
        yield f'<div class="legend">{legend(memory_view.picture)}</div>'
    yield from _body(memory_view)


def _body(memory_view: MemoryView) -> Iterator[str]:
    if memory_view.categories:
        yield html_cells_table(memory_view.categories)
    yield _list((*memory_view.facts, *memory_view.notes))
    for holders in (memory_view.modules, memory_view.lines):
        if holders is not None:
            yield f"<details><summary>{escape_html(holders.title)}</summary>{_holders_html_memory(holders)}</details>"
    if memory_view.others:
        left = (
            f'<p class="note">and {memory_view.others_left:,} more, with lower peaks</p>'
            if memory_view.others_left
            else ""
        )
        yield f"<details><summary>side by side</summary>{html_cells_table(memory_view.others)}{left}</details>"
    if memory_view.picture is not None:
        yield (
            f"<details><summary>the picture in "
            f"numbers</summary>{html_cells_table(memory_view.picture.moments)}</details>"
        )


def _holders_html_memory(holders: HolderTable) -> str:
    left = holders.left(len(holders.rows))
    return html_cells_table(holders.rows) + (f'<p class="note">{escape_html(left)}</p>' if left else "")


def _list(texts: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape_html(text)}</li>' for text in texts)}</ul>" if texts else ""
