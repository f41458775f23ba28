"""Collectives of one kind, those that ran beside another communication of their device against those that ran alone.

Compared is the core (the shortest duration over the ranks), so waiting for a late rank is in neither. What runs
beside it is looked at on the rank that came last, whose duration the core is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.ranks.job import Member
from perfscope.analyzers.ranks.matching import Group, Matched
from perfscope.analyzers.ranks.sets import RankSet
from perfscope.analyzers.ranks.waits import compute_intervals
from perfscope.analyzers.time import exposed_communication
from perfscope.model.intervals import Intervals, covered, union
from perfscope.model.trace import MISSING

BESIDE = 0.5
"""Of a collective, beside another one: from here on it counts as sharing the links, below it (and above nothing) it is
of neither kind."""

LITTLE, MOSTLY = 0.2, 0.8
"""Of a collective, beside computing: below and above are compared apart, since computing slows it too."""

Kind = tuple[str, Group, int, str | None, str | None, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A collective that ran beside another."""

    collective: Matched
    share: float
    """Of its time that was beside another."""
    other: str
    """What it mostly ran beside: operation and ranks."""
    exposed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Collectives of one operation, group, size, algorithm and protocol, and alike in what computes beside them."""

    shared: tuple[Shared, ...]
    alone_ns: tuple[int, ...]
    """Cores of those that ran alone."""

    @property
    def median_alone_ns(self) -> float:
        """Of those that ran alone."""
        return float(np.median(self.alone_ns))

    @property
    def slower(self) -> float:
        """Times as long as alone, by the medians."""
        return float(np.median([one.collective.core_ns for one in self.shared])) / max(1.0, self.median_alone_ns)

    @property
    def chance(self) -> float:
        """That so many of the shared ones are longer by chance alone."""
        return rank_sum([one.collective.core_ns for one in self.shared], self.alone_ns)

    def saves_ns(self, one: Shared) -> int:
        """Upper bound: its excess over the alone median, as far as it is exposed."""
        return int(min(max(0.0, one.collective.core_ns - self.median_alone_ns), one.exposed_ns))


def compared_kinds(ranks: RankSet) -> tuple[Compared, ...]:
    """Kinds of collectives of a job; of some none ran alone, or none beside another."""
    members = {member.rank: member for member in ranks.job.members}
    others: dict[tuple[int, int], Intervals] = {}
    shared: dict[Kind, list[Shared]] = defaultdict(list)
    alone: dict[Kind, list[int]] = defaultdict(list)
    for one in ranks.matching.matched:
        side, size = one.sides[one.last], one.message_bytes
        if side.kernel == MISSING or not size or not one.complete or not side.duration_ns:
            continue
        member = members[one.last]
        computing = member.trace.fact(compute_intervals)
        beside = int(covered(computing, [side.start_ns], [side.end_ns])[0]) / side.duration_ns
        if LITTLE <= beside <= MOSTLY:
            continue
        if (one.last, side.lane) not in others:
            others[one.last, side.lane] = _other_lanes(member, side.lane)
        share = int(covered(others[one.last, side.lane], [side.start_ns], [side.end_ns])[0]) / side.duration_ns
        kind = one.operation, one.group, size, side.algorithm, side.protocol, beside > MOSTLY
        if share == 0:
            alone[kind].append(one.core_ns)
        elif share >= BESIDE:
            exposed = int(member.trace.fact(exposed_communication)[side.kernel])
            shared[kind].append(
                Shared(collective=one, share=share, other=_beside_what(one, member), exposed_ns=exposed)
            )
    return tuple(Compared(shared=tuple(shared[kind]), alone_ns=tuple(alone[kind])) for kind in {**shared, **alone})


def rank_sum(longer: Sequence[float], than: Sequence[float]) -> float:
    """One-sided p of the Wilcoxon-Mann-Whitney test, by the normal approximation with ties and continuity corrected.

    Mann and Whitney 1947; ``1.0`` where a sample is empty or all values are the same.
    """
    first, second = np.asarray(longer, float), np.asarray(than, float)
    both = np.concatenate((first, second))
    total = len(both)
    if not len(first) or not len(second):
        return 1.0
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    above = ranks[: len(first)].sum() - len(first) * (len(first) + 1) / 2
    ties = float((counts**3 - counts).sum()) / max(1, total * (total - 1))
    variance = len(first) * len(second) / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    z = (above - len(first) * len(second) / 2 - 0.5) / math.sqrt(variance)
    return 0.5 * math.erfc(z / math.sqrt(2))


def _other_lanes(member: Member, lane: int) -> Intervals:
    """When the rank's other streams communicated."""
    found = [one for one in member.collectives if one.kernel != MISSING and one.lane != lane]
    return union([one.start_ns for one in found], [one.end_ns for one in found])


def _beside_what(one: Matched, member: Member) -> str:
    side = one.sides[one.last]
    overlaps = [
        (min(other.end_ns, side.end_ns) - max(other.start_ns, side.start_ns), other)
        for other in member.collectives
        if other.kernel != MISSING and other.lane != side.lane
    ]
    other = max(overlaps, key=lambda pair: pair[0])[1]
    return other.operation if other.size is None else f"{other.operation} of {other.size} ranks"
