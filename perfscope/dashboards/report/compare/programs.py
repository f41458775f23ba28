"""What a comparison's document says of compiled programs, typed: changes by instruction that sum to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

from perfscope.dashboards.report.compare.types import MANY, SOME, Count, Texts, Value
from perfscope.dashboards.report.compare.wording import IDENTICAL, amount
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import NAME_LIMIT, TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from perfscope.dashboards.report.compare.document import Document


Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class ProgramAmount(Value, frozen=True, kw_only=True):
    """A metric of a program, or a row's part of it, on both sides."""

    name: str
    unit: str
    base: Amount
    head: Amount


Amounts = Annotated[tuple[ProgramAmount, ...], msgspec.Meta(max_length=SOME)]


class ProgramRow(Value, frozen=True, kw_only=True):
    """One change at one line; ``source``: the line of the program as written that changed, where it is known."""

    change: str
    what: str = ""
    place: str = ""
    source: str = ""
    phase: str = ""
    count: Count = 1
    amounts: Amounts = ()
    lost: Count = 0
    """Launches that were part of a fusion."""
    blocking: Count = 0
    """Collectives that the device waits for now, and did not."""
    base_names: Texts = ()
    head_names: Texts = ()
    said: Texts = ()
    is_worse: bool = False

    def where(self) -> str:
        """The line to look at first."""
        return self.source or self.place


class OtherRows(Value, frozen=True, kw_only=True):
    """The rows that were not written one by one."""

    count: Count = 0
    amounts: Amounts = ()


class ProgramWritten(Value, frozen=True, kw_only=True):
    """What differs at a line of the program before the compiler optimized it."""

    place: str
    change: str
    what: str = ""
    count: Count = 1


class Span(Value, frozen=True, kw_only=True):
    """Time of a run by the model, in ns: between the peaks of the hardware and what kernels usually reach."""

    low: Amount
    high: Amount


class ProgramDifference(Value, frozen=True, kw_only=True):
    """One compiled program on both sides; its rows sum to the change of each of its metrics."""

    name: str
    base_fingerprint: str
    head_fingerprint: str
    identical: bool
    amounts: Amounts = ()
    rows: Annotated[tuple[ProgramRow, ...], msgspec.Meta(max_length=MANY)] = ()
    other_rows: OtherRows = OtherRows()
    written: Annotated[tuple[ProgramWritten, ...], msgspec.Meta(max_length=MANY)] | None = None
    """``None``: the programs before optimization were not there."""
    base_modelled: Span | None = None
    head_modelled: Span | None = None
    notes: Texts = ()

    def problem(self) -> str | None:
        """What does not sum; ``None``: everything does."""
        wanted = {one.name: one.head - one.base for one in self.amounts}
        sums = dict.fromkeys(wanted, 0)
        for held in (*(row.amounts for row in self.rows), self.other_rows.amounts):
            for one in held:
                if one.name not in sums:
                    return f"a row is of {one.name[:80]!r}, which the program does not have"
                sums[one.name] += one.head - one.base
        wrong = next((name for name in wanted if sums[name] != wanted[name]), None)
        if wrong is not None:
            return f"{wrong[:80]}: its rows sum to {sums[wrong]}, not to {wanted[wrong]}"
        if self.identical and (self.rows or self.base_fingerprint != self.head_fingerprint):
            return "it is called identical and is not"
        return None


# What every face of a comparison says of compiled programs: rows and words, fit to be shown. Escaped for none.


_SHORT = {
    "bytes moved a run": "moved",
    "FLOPs a run": "FLOPs",
    "instructions launched a run": "launches",
    "recomputed FLOPs a run": "FLOPs recomputed",
    "collective bytes a run": "sent to other devices",
    "peak memory of the program": "at the peak",
    "bytes of planned kernels a step": "moved",
    "FLOPs of planned kernels a step": "FLOPs",
    "planned kernels a step": "kernels",
    "planned graph breaks": "graph breaks",
    "planned peak memory of a step": "at the peak",
    "planned collectives a step": "collectives",
    "planned collective bytes a step": "sent to other devices",
    "planned collectives that block a step": "that block",
    "planned collective bytes that block a step": "of what blocks",
}
"""What stands behind a row's amounts."""

_BLOCKED = ("collectives that block a run", "planned collectives that block a step")

MOST_WRITTEN = 6
MOST_ROWS_SAID = 3
"""Sentences of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLine:
    """A row in words."""

    where: str
    """The line to look at; ``''`` where none is known."""
    title: str
    """``moved out of a fusion: reduce_sum, mul (backward), 4 times; shows at model.py:16``."""
    amounts: str
    """``+160 MiB moved, +6 launches``."""
    said: tuple[str, ...]
    is_worse: bool


def program_title(one: ProgramDifference, *, several: bool) -> str:
    """``jit_step: 3 changes by instruction``."""
    lead = f"{sanitize(one.name)}: " if several else ""
    if one.identical:
        return f"{lead}{IDENTICAL} ({sanitize(one.head_fingerprint)})"
    count = len(one.rows) + one.other_rows.count
    if one.base_fingerprint == one.head_fingerprint:
        return f"{lead}same fingerprint, another plan of its memory"
    if not count:
        return f"{lead}the same launches in another order"
    return f"{lead}{count:,} change{'' if count == 1 else 's'} by instruction; each metric's parts sum to its change"


def program_lines(one: ProgramDifference, most: int, *, limit: int = NAME_LIMIT) -> tuple[list[ProgramLine], int]:
    """(the first rows in words, how many are left)."""
    kept = one.rows[:most]
    return [_line(row, limit) for row in kept], len(one.rows) - len(kept) + one.other_rows.count


def _line(row: ProgramRow, limit: int) -> ProgramLine:
    phase = f" ({sanitize(row.phase)})" if row.phase else ""
    times = f", {row.count:,} times" if row.count > 1 else ""
    at = f"; shows at {sanitize(row.place, limit)}" if row.source and row.place and row.place != row.source else ""
    return ProgramLine(
        where=sanitize(row.where(), limit),
        title=f"{sanitize(row.change)}: {sanitize(row.what, limit)}{phase}{times}{at}",
        amounts=", ".join(map(signed, row.amounts)),
        said=tuple(sanitize(text, TEXT_LIMIT) for text in row.said[:MOST_ROWS_SAID]),
        is_worse=row.is_worse,
    )


def signed(one: ProgramAmount) -> str:
    """``+160 MiB moved``."""
    change = one.head - one.base
    name = _SHORT.get(one.name, sanitize(one.name))
    return f"{'+' if change > 0 else '-'}{amount(one.unit, abs(change))}{f' {name}' if name else ''}"


def written_line(one: ProgramDifference) -> str:
    """What differs in the program as written; ``''`` where nothing does, or nobody knows."""
    if not one.written:
        return ""
    places: dict[str, list[str]] = {}
    for held in one.written:
        times = f" ({held.count:,} times)" if held.count > 1 else ""
        places.setdefault(sanitize(held.place), []).append(f"{sanitize(held.change)} {sanitize(held.what)}{times}")
    said = [f"{place}: {', '.join(what[:MOST_WRITTEN])}" for place, what in places.items()]
    more = f"; and {len(said) - MOST_WRITTEN:,} more lines" if len(said) > MOST_WRITTEN else ""
    return "; ".join(said[:MOST_WRITTEN]) + more


def modelled_line(one: ProgramDifference) -> str:
    """Time of a run by the model on both sides; ``''`` where it is not known."""
    if one.base_modelled is None or one.head_modelled is None:
        return ""
    return f"a run takes {_span(one.base_modelled)} → {_span(one.head_modelled)} by the model; nothing was measured"


def _span(held: Span) -> str:
    return f"{format_ns(held.low)} to {format_ns(held.high)}"


def row_of_metric(document: Document, name: str) -> ProgramRow | None:
    """The first row of a program's metric that is worse by it; ``name`` as the document's metrics have it."""
    for one in document.programs:
        plain = name.removeprefix(f"{one.name}: ")
        for row in one.rows:
            if any(held.name == plain and held.head > held.base for held in row.amounts):
                return row
            if plain in _BLOCKED and row.blocking:
                return row
    return None


def changed_programs(document: Document) -> Sequence[ProgramDifference]:
    """Programs that differ."""
    return [one for one in document.programs if not one.identical]
