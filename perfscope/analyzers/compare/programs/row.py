"""Changes of a compiled program as rows whose amounts sum to the total change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.compare.programs.keys import NO_LINES, LineMap
from perfscope.analyzers.compare.programs.units import (
    BYTES,
    FLOPS,
    PEAK,
    PLAN_BLOCKED,
    PLAN_BLOCKED_WIRE,
    PLAN_BREAKS,
    PLAN_BYTES,
    PLAN_FLOPS,
    PLAN_PEAK,
    PLAN_WIRE,
    RECOMPUTED,
    WIRE,
)
from perfscope.analyzers.predict import Range
from perfscope.model.documents.compared_programs import ProgramRowValues, ProgramWritten

What = Literal[
    "collective became blocking", "moved out of a fusion", "new collective", "more recompute", "trip count changed",
    "type changed", "layout changed", "new", "more bytes", "more FLOPs", "fused otherwise", "moved into a fusion",
    "fewer bytes", "fewer FLOPs", "less recompute", "collective gone", "gone", "collective no longer blocks",
    "more live at the peak", "less live at the peak", "new graph break", "graph break gone",
    "exchanged in more parts", "exchanged in fewer parts", "changed",
]  # fmt: skip

LIVE: tuple[What, What] = ("more live at the peak", "less live at the peak")
BLOCKING: What = "collective became blocking"
NEW_COLLECTIVE: What = "new collective"
COLLECTIVE_GONE: What = "collective gone"
NO_LONGER: What = "collective no longer blocks"
LOST: What = "moved out of a fusion"

MOST_OPS = 4
"""Maximum number of ops that a row names."""
MOST_SENTENCES = 6
"""Maximum number of sentences of a row, and of launch names per side."""

NEW_BREAK: What = "new graph break"
BREAKS: tuple[What, What] = (NEW_BREAK, "graph break gone")

_JUDGED = (
    BYTES, FLOPS, RECOMPUTED, WIRE, PEAK, PLAN_BYTES, PLAN_FLOPS, PLAN_BREAKS, PLAN_PEAK, PLAN_WIRE, PLAN_BLOCKED,
    PLAN_BLOCKED_WIRE,
)  # fmt: skip
"""Metrics of which more is worse. Launches and the number of collectives follow from bytes."""

Amounts = Mapping[str, tuple[int, int]]


class ProgramRow(ProgramRowValues, frozen=True, kw_only=True):
    """One change, at one line. Rows that say the same of one line are one row."""

    change: What
    what: str
    """Ops of the change: ``exp, tanh``."""
    place: str
    amounts: Amounts = field(default_factory=dict)
    """Metric -> (base, head), for metrics that differ."""
    weight: int = 0
    """Bytes that a collective sends, where whether it blocks is the change."""

    @property
    def is_worse(self) -> bool:
        """Whether the head has more of a costly metric, or a new wait."""
        return self.blocking > 0 or any(name in _JUDGED and head > base for name, (base, head) in self.amounts.items())

    def delta(self, name: str) -> int:
        """Return head minus base of a metric."""
        base, head = self.amounts.get(name, (0, 0))
        return head - base

    @property
    def moved(self) -> int:
        """Change of the bytes through memory, of a compiled program or a plan."""
        return self.delta(BYTES) + self.delta(PLAN_BYTES)


class ProgramChange(Struct, frozen=True, kw_only=True):
    """One program on both sides."""

    name: str
    base_fingerprint: str
    head_fingerprint: str
    totals: Amounts
    rows: tuple[ProgramRow, ...] = ()
    """Rows in the order of importance."""
    written: tuple[ProgramWritten, ...] | None = None
    """``None`` if a side lacks the program before optimization."""
    modelled_ns: tuple[Range, Range] | None = None
    """Modelled time of a run of both sides; ``None`` if targets are missing or differ."""
    notes: tuple[str, ...] = ()
    lines: LineMap = NO_LINES
    """Positions of the base's lines in the head."""
    failed: Literal["", "base", "head"] = ""
    """The side whose planning failed: it is incomplete, so nothing is compared."""

    @property
    def identical(self) -> bool:
        """Whether both sides compute the same in the same order, apart from names."""
        return self.base_fingerprint == self.head_fingerprint and not self.rows and not self.failed

    def check(self) -> None:
        """Raise ``ValueError`` unless the rows of each metric sum to its change."""
        for name, (base, head) in self.totals.items():
            parts = sum(row.delta(name) for row in self.rows)
            if parts != head - base:
                raise ValueError(f"{name}: rows sum to {parts}, not to {head - base}")


def merged(rows: Iterable[ProgramRow], totals: Amounts) -> tuple[ProgramRow, ...]:
    """Merge rows of one change at one line; worse rows and changed lines first."""
    by_key: dict[tuple[str, str, str, str, str], list[ProgramRow]] = {}
    for row in rows:
        by_key.setdefault((row.change, row.what, row.where(), row.place, row.phase), []).append(row)
    return tuple(sorted((_one(same) for same in by_key.values()), key=lambda row: _first(row, totals)))


def _one(rows: Sequence[ProgramRow]) -> ProgramRow:
    first = max(rows, key=lambda row: max((abs(row.delta(name)) for name in row.amounts), default=0))
    names = dict.fromkeys(name for row in rows for name in row.amounts)
    sums = {name: tuple(sum(row.amounts.get(name, (0, 0))[side] for row in rows) for side in (0, 1)) for name in names}
    return replace(
        first,
        count=len(rows),
        amounts={name: (base, head) for name, (base, head) in sums.items() if base != head},
        weight=sum(row.weight for row in rows),
        lost=sum(row.lost for row in rows),
        blocking=sum(row.blocking for row in rows),
        base_names=tuple(name for row in rows for name in row.base_names)[:MOST_SENTENCES],
        head_names=tuple(name for row in rows for name in row.head_names)[:MOST_SENTENCES],
        said=first.said[:MOST_SENTENCES],
    )


def share(row: ProgramRow, totals: Amounts) -> float:
    """Return the row's largest share of a whole metric."""
    known = [name for name in row.amounts if name in totals and max(totals[name]) > 0]
    names = [name for name in known if name in _JUDGED] or known  # Launches follow from the bytes that they move.
    shares = [abs(row.delta(name)) / max(totals[name]) for name in names]
    wire = max(totals.get(WIRE, (0, 0)))
    if row.weight and wire:
        shares.append(row.weight / wire)
    return max(shares, default=0.0)


def _first(row: ProgramRow, totals: Amounts) -> tuple[bool, bool, float, str, str]:
    return (not row.is_worse, not (row.source and row.is_worse), -share(row, totals), row.where(), row.what)


_Line = tuple[str, str, str]


def difference_rows(
    base: Mapping[tuple[str, str, str], int],
    head: Mapping[tuple[str, str, str], int],
    name: str,
    words: tuple[What, What],
) -> Iterator[ProgramRow]:
    """Yield a row for each (place, what, phase) whose part of a metric differs. ``words``: for more, and for less."""
    for key in dict.fromkeys((*head, *base)):
        before, after = base.get(key, 0), head.get(key, 0)
        if before != after:
            place, what, phase = key
            change = words[0] if after > before else words[1]
            yield ProgramRow(change=change, what=what, place=place, phase=phase, amounts={name: (before, after)})


def some_of(names: Iterable[str], most: int = MOST_OPS) -> str:
    """Return the first distinct names and the number of further names."""
    known = list(dict.fromkeys(filter(None, names)))
    return ", ".join(known[:most]) + (f" and {len(known) - most:,} more" if len(known) > most else "")
