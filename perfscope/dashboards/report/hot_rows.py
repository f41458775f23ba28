"""Where the time of compiled programs goes, as tables decided once for every report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.programs.hot_instructions import HotInstruction, HotPlace, HotSpots

NAME_LIMIT = 28
"""Characters of a program's or an instruction's name in a table."""

PLACE_LIMIT = 40
"""Characters of a source line or a scope in a table: the end tells."""

NAMES = frozenset(
    {
        "program",
        "source line",
        "scope",
        "instruction",
        "op",
        "mainly",
        "at",
        "frame",
        "kernel",
        "lines",
        "ATen ops",
        "module",
        "mostly at",
        "of",
    }
)
"""Columns whose words are names of the program, here and in the tables of programs and of torch.compile."""

WORDS = NAMES | {
    "bound by",
    "state",
    "backend",
    "FX cache",
    "collective",
    "group",
    "algorithm",
    "category",
    "known by",
    "memory",
    "phase",
    "a step",
    "at the peak",
    "computes",
    "asks for it",
    "in",
    "way",
    "block size",
    "graph",
}
"""Columns of text; the others are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRow:
    """A line, a scope or an instruction as cells, and its share as a number for a bar."""

    cells: tuple[tuple[str, str], ...]
    """(column, cell); the same columns in every row of a table."""
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HotTable:
    """Rows worst first, and what is not in them."""

    title: str
    rows: tuple[HotRow, ...]
    left: str
    """``'and 204 more, 12.3 ms together'`` of what the model already left out; ``''`` if nothing."""


def hot_title(spots: HotSpots) -> str:
    """What the tables are of: ``'where the time goes: 42.1 ms of instructions, measured'``."""
    whole = format_ns(spots.total_ns)
    rank = f" of {sanitize(spots.program, NAME_LIMIT)}" if spots.program else ""
    rank += f" of rank {spots.rank}" if spots.rank is not None else ""
    if spots.basis == "measured":
        missed = f", {format_share(spots.unmatched_ns, spots.total_ns)} of it in no recorded program"
        return f"where the time{rank} goes: {whole} of instructions, measured" + (missed if spots.unmatched_ns else "")
    return f"where the least time{rank} goes: {whole} a run, modelled"


def place_table(what: str, places: Sequence[HotPlace], spots: HotSpots, key: str) -> HotTable:
    """Lines or scopes as a table; ``key``: the list's name in ``HotSpots``."""
    rows = tuple(
        HotRow(
            cells=(
                ("time", format_ns(place.time_ns)),
                ("share", format_share(place.time_ns, spots.total_ns)),
                (what, _place(place)),
                *((("mainly", shorten(sanitize(place.mainly), PLACE_LIMIT)),) if what != "scope" else ()),
                ("instructions", f"{place.instructions:,}" if place.instructions else "-"),
            ),
            share=place.time_ns / spots.total_ns if spots.total_ns else 0.0,
        )
        for place in places
    )
    return HotTable(title=f"by {what}", rows=rows, left=_left(spots, key))


def _place(place: HotPlace) -> str:
    phase = f" ({place.phase})" if place.phase not in (None, "forward") else ""
    return place_end(sanitize(place.name)) + phase


def place_end(text: str) -> str:
    """The end of a path or scope that is too long, cut at a slash where one is."""
    if len(text) <= PLACE_LIMIT:
        return text
    kept = text[-(PLACE_LIMIT - 2) :]
    return f"…{kept[kept.index('/') :]}" if "/" in kept else shorten(text, PLACE_LIMIT)


def instruction_table(spots: HotSpots) -> HotTable:
    """Instructions as a table; columns of the roofline only where one is known."""
    rows = tuple(
        HotRow(cells=tuple(_instruction(row, spots)), share=row.time_ns / spots.total_ns if spots.total_ns else 0.0)
        for row in spots.instructions
    )
    return HotTable(title="by instruction", rows=rows, left=_left(spots, "instructions"))


def _instruction(row: HotInstruction, spots: HotSpots) -> Iterator[tuple[str, str]]:
    yield "time", format_ns(row.time_ns)
    yield "share", format_share(row.time_ns, spots.total_ns)
    yield "instruction", shorten(sanitize(row.instruction), NAME_LIMIT)
    yield "op", shorten(sanitize(row.scope or row.opcode or ""), NAME_LIMIT)
    yield (
        "at",
        "" if row.file is None else place_end(sanitize(row.file if row.line is None else f"{row.file}:{row.line}")),
    )
    yield "calls", f"{row.calls:,}"
    if any(one.bound is not None for one in spots.instructions):
        yield "bound by", row.bound or "-"
        yield "roof", "-" if row.roof_ns is None else format_ns(row.roof_ns)
    if any(one.headroom_ns is not None for one in spots.instructions):
        yield "headroom", "-" if row.headroom_ns is None else format_ns(row.headroom_ns)


def _left(spots: HotSpots, key: str) -> str:
    left = spots.left.get(key)
    return f"and {left.count:,} more, {format_ns(left.time_ns)} together" if left is not None and left.count else ""
