"""Which collectives of the ranks are one and the same.

By number in its group where the profiler recorded it. Otherwise by order: the k-th collective of a group on each
rank, counted from the first one whose launch is in the trace (those before were launched before the capture
began), so that a rank whose capture caught one more still lines up. Where operations or sizes then disagree, the
order of that rank is moved by up to ``MOST_SHIFT`` until they agree best. What still disagrees, or is on one rank
only, is counted and not used.

Groups that are not recorded are told by stream: NCCL runs each group of a rank on a stream of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.ranks.job import Job
from perfscope.analyzers.ranks.local import Local
from perfscope.model.collectives import POINT_TO_POINT

MOST_SHIFT = 16
"""Collectives that one capture caught and another did not: a step's worth of bookkeeping, not a step."""

SAME = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Operations whose message has the same size on every rank."""

Place = tuple[int, int]
"""Number in the group, and which of the collectives of that number (a coalesced call launches several)."""
Group = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One collective on the ranks that recorded it, two at least. Times are each rank's own."""

    operation: str
    group: Group
    """Its members; where the profiler did not record them, the ranks that take part."""
    named: bool
    """The members are recorded."""
    index: int
    """Number in its group, as recorded or counted."""
    sides: Mapping[int, Local]
    """By rank."""
    core_ns: int
    """The shortest duration: the last rank to arrive waits for nobody. Needs no common clock."""
    last: int
    """The rank that arrived last, by duration."""

    @property
    def complete(self) -> bool:
        """All members of the group are among the sides."""
        return len(self.sides) == len(self.group)

    def wait_ns(self, rank: int) -> int:
        """What a rank waited for the last one to arrive: its duration less the shortest."""
        return self.sides[rank].duration_ns - self.core_ns

    @property
    def size(self) -> int:
        """Ranks that take part."""
        return len(self.group)

    @property
    def message_bytes(self) -> int | None:
        """Largest message of a rank, as nccl-tests counts it; None where sizes are not recorded."""
        found = [size for side in self.sides.values() if (size := side.message_bytes(len(self.group))) is not None]
        return max(found, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All matched collectives of a job by their first start, and what could not be matched."""

    matched: tuple[Matched, ...]
    alone: int
    """Collectives that no other recorded rank shows."""
    disagreeing: int
    """Collectives whose operation or size is not that of the others at the same place."""
    point_to_point: int
    """Sends and receives: `pairs.py` puts those together."""
    notes: tuple[str, ...]


def match(job: Job) -> Matching:
    """The collectives of a job's ranks, put together."""
    lanes: dict[tuple[Group | str, int | str], dict[int, list[Local]]] = defaultdict(lambda: defaultdict(list))
    named_alike = _named_alike(job)
    between = 0
    for member in job.members:
        for one in member.collectives:
            if one.operation in POINT_TO_POINT:
                between += 1
            elif one.ranks is not None:
                name = one.group or "" if one.ranks in named_alike else ""
                lanes[one.ranks, name][member.rank].append(one)
            else:
                lanes["", one.lane][member.rank].append(one)
    matched: list[Matched] = []
    alone = disagreeing = unnamed = 0
    for (group, _), by_rank in lanes.items():
        placed = _placed(by_rank)
        for index in sorted({index for found in placed.values() for index in found}):
            sides = {rank: found[index] for rank, found in placed.items() if index in found}
            kept = _agreeing(sides)
            disagreeing += len(sides) - len(kept)
            if len(kept) < 2:
                alone += len(kept)
                continue
            unnamed += isinstance(group, str)
            operation = Counter(side.operation for side in kept.values()).most_common(1)[0][0]
            takes_part = tuple(sorted(by_rank)) if isinstance(group, str) else group
            named = not isinstance(group, str)
            last = min(sorted(kept), key=lambda rank: kept[rank].duration_ns)
            matched.append(
                Matched(
                    operation=operation, group=takes_part, named=named, index=index[0], sides=kept,
                    core_ns=kept[last].duration_ns, last=last,
                )
            )  # fmt: skip
    matched.sort(key=lambda one: min(side.start_ns for side in one.sides.values()))
    notes = []
    if unnamed:
        notes.append(
            f"process groups of {unnamed:,} collectives are not recorded: those on the same stream of every rank are "
            "held to be of one group, and matched in order"
        )
    for count, what in (
        (alone, "are on one recorded rank only"),
        (disagreeing, "differ in operation or size from the others at their place"),
    ):
        if count:
            notes.append(f"{count:,} collectives {what}")
    return Matching(
        matched=tuple(matched), alone=alone, disagreeing=disagreeing, point_to_point=between, notes=tuple(notes)
    )


def _named_alike(job: Job) -> frozenset[Group]:
    """Members whose groups have the same names on all their ranks: several groups of them are told apart by name.

    Older versions of torch number groups on each rank for itself.
    """
    names: dict[Group, dict[int, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for member in job.members:
        for one in member.collectives:
            if one.ranks is not None:
                names[one.ranks][member.rank].add(one.group)
    return frozenset(
        ranks for ranks, by_rank in names.items() if len({frozenset(held) for held in by_rank.values()}) == 1
    )


def _placed(by_rank: Mapping[int, list[Local]]) -> dict[int, dict[Place, Local]]:
    """Rank -> place -> collective."""
    if all(one.sequence is not None for found in by_rank.values() for one in found):
        return {rank: _by_sequence(found) for rank, found in by_rank.items()}
    placed = {}
    for rank, found in by_rank.items():
        before = next((at for at, one in enumerate(found) if one.launched), 0)
        placed[rank] = {(at - before, 0): one for at, one in enumerate(found)}
    reference = max(sorted(placed), key=lambda rank: len(placed[rank]))
    return {rank: _shifted(found, placed[reference]) for rank, found in placed.items()}


def _by_sequence(found: Sequence[Local]) -> dict[Place, Local]:
    """By recorded number; the kernels of one number (of a coalesced call) are told apart by their order."""
    seen: Counter[int] = Counter()
    placed = {}
    for one in found:
        number = one.sequence or 0
        placed[number, seen[number]] = one
        seen[number] += 1
    return placed


def _shifted(found: dict[Place, Local], reference: Mapping[Place, Local]) -> dict[Place, Local]:
    """Moved along until most operations and sizes agree with the reference; not moved unless more agree then."""

    def agreeing(shift: int) -> tuple[int, int]:
        same = sum(
            (other := reference.get((at + shift, 0))) is not None and _same(one, other)
            for (at, _), one in found.items()
        )
        return same, -abs(shift)

    if agreeing(0)[0] == len(found):
        return found
    best = max(range(-MOST_SHIFT, MOST_SHIFT + 1), key=agreeing)
    return {(at + best, 0): one for (at, _), one in found.items()}


def _agreeing(sides: Mapping[int, Local]) -> dict[int, Local]:
    """The largest set of sides that are the same operation of the same size."""
    sets: list[dict[int, Local]] = []
    for rank, side in sorted(sides.items()):
        for held in sets:
            if _same(side, next(iter(held.values()))):
                held[rank] = side
                break
        else:
            sets.append({rank: side})
    return max(sets, key=len)


def _same(one: Local, other: Local) -> bool:
    """Whether two ranks may have seen the same collective. NCCL's all-to-all kernels are of sends and receives."""
    if one.operation != other.operation:
        return {one.operation, other.operation} == {"send_recv", "all_to_all"}
    sizes = (one.message_bytes(2), other.message_bytes(2))
    return one.operation not in SAME or None in sizes or sizes[0] == sizes[1]
