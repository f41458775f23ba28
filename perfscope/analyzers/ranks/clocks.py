"""The clocks of a job's ranks put on one: by the ends of collectives, which all ranks leave together.

A ring or tree ends on all its ranks within microseconds, however late one of them came. The offset of a rank is the
median of (its end - the reference's end) over the collectives they share; ranks that share none with the reference
are reached over others. What remains around the median is the uncertainty: no difference between ranks below it
means anything, and an offset that is smaller than it is taken as none (clocks of one host agree).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.ranks.matching import Matched

COMMON_END = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations that no rank can leave before all have sent everything; an all-to-all it leaves when it has received."""

MIN_SHARED = 3
"""Collectives with a common end; with fewer, all collectives are used."""

QUANTILE = 0.9
"""Of the distances from the median end: one in ten may lie further out (an interrupted host, a late kernel record)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What to subtract from a rank's times, and how far that may be off."""

    offset_ns: dict[int, int]
    """By rank; the reference rank's is 0."""
    uncertainty_ns: dict[int, int]
    """By rank."""
    reference: int
    unreached: tuple[int, ...]
    """Ranks that share no collective with any other: their clocks are not known."""

    @property
    def worst_ns(self) -> int:
        """The largest uncertainty of a rank."""
        return max(self.uncertainty_ns.values(), default=0)

    @property
    def largest_offset_ns(self) -> int:
        """The largest distance between two ranks' clocks."""
        return max(self.offset_ns.values(), default=0) - min(self.offset_ns.values(), default=0)


def align(matched: Sequence[Matched], ranks: Sequence[int]) -> Clocks:
    """The clocks of ``ranks``, the lowest of which is the reference. There is at least one."""
    common = [one for one in matched if one.operation in COMMON_END]
    used = common if len(common) >= MIN_SHARED else list(matched)
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for one in used:
        held = sorted(one.sides)
        for first in held[:1]:
            for other in held[1:]:
                ends[first, other].append(one.sides[other].end_ns - one.sides[first].end_ns)
    measured = _reached(ends, ranks)
    uncertainty = _uncertainty(used, measured)
    offsets = {rank: value if abs(value) > uncertainty.get(rank, 0) else 0 for rank, value in measured.items()}
    unreached = tuple(rank for rank in ranks if rank not in measured)
    return Clocks(offset_ns=offsets, uncertainty_ns=uncertainty, reference=min(ranks), unreached=unreached)


def _reached(ends: dict[tuple[int, int], list[int]], ranks: Sequence[int]) -> dict[int, int]:
    """Offset by rank, each over the link with most collectives to a rank that is known already."""
    links: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (first, other), found in ends.items():
        offset = int(np.median(found))
        links[first].append((len(found), other, offset))
        links[other].append((len(found), first, -offset))
    known = {min(ranks): 0}
    while True:
        ways = [
            (count, -other, known[rank] + offset)
            for rank in known
            for count, other, offset in links[rank]
            if other not in known
        ]
        if not ways:
            return known
        _, other, offset = max(ways)
        known[-other] = offset


def _uncertainty(used: Sequence[Matched], offsets: dict[int, int]) -> dict[int, int]:
    """By rank: how far its aligned ends lie from the median end, at ``QUANTILE``."""
    distances: dict[int, list[float]] = defaultdict(list)
    for one in used:
        aligned = {rank: side.end_ns - offsets[rank] for rank, side in one.sides.items() if rank in offsets}
        if len(aligned) < 2:
            continue
        first = min(aligned.values())  # epoch times do not fit a float to the nanosecond, differences do
        middle = float(np.median([end - first for end in aligned.values()]))
        for rank, end in aligned.items():
            distances[rank].append(abs(end - first - middle))
    return {rank: int(np.quantile(found, QUANTILE)) for rank, found in distances.items()}
