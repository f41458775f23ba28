"""Matching of collectives across the ranks.

Collectives match by their number in the group if the profiler recorded it, otherwise by order: the k-th collective of a
group on each rank, counted from the first one whose launch is in the trace (earlier ones were launched before the
capture began), so that a rank whose capture has one more still aligns. If operations or sizes then disagree, the order
of that rank is shifted by up to ``MOST_SHIFT`` to the best agreement. Collectives that still disagree, or that are on
one rank only, are counted and not used.

Groups that are not recorded are identified by stream: NCCL runs each group of a rank on a separate stream.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
from msgspec import Struct

from perfscope.analyzers.ranks.job import Job, Local
from perfscope.model.collectives import POINT_TO_POINT
from perfscope.model.finding import Removed
from perfscope.model.trace import MISSING

MOST_SHIFT = 16
"""Maximum difference in collectives between captures: a step has some bookkeeping collectives, but more is a whole
step.
"""

SAME = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Operations whose message has the same size on every rank."""

Place = tuple[int, int]
"""Number in the group, and index among the collectives with that number (a coalesced call launches several)."""
Group = tuple[int, ...]


class Matched(Struct, frozen=True, kw_only=True):
    """One collective on at least two ranks. Times are on each rank's clock."""

    operation: str
    group: Group
    """Its members; if the profiler did not record them, the ranks that took part."""
    named: bool
    """Whether the members are recorded."""
    index: int
    """Number in its group, recorded or counted."""
    sides: Mapping[int, Local]
    """By rank."""
    core_ns: int
    """The shortest duration, because the last rank to arrive does not wait. Needs no common clock."""
    last: int
    """Rank that arrived last, by duration."""

    @property
    def complete(self) -> bool:
        """Whether all members of the group are among the sides."""
        return len(self.sides) == len(self.group)

    def wait_ns(self, rank: int) -> int:
        """Return the wait of a rank for the last one to arrive: its duration minus the shortest."""
        return self.sides[rank].duration_ns - self.core_ns

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.group)

    @property
    def message_bytes(self) -> int | None:
        """Largest message of a rank in the definition of nccl-tests; None if sizes are not recorded."""
        results = [size for side in self.sides.values() if (size := side.message_bytes(len(self.group))) is not None]
        return max(results, default=None)


class Matching(Struct, frozen=True, kw_only=True):
    """All matched collectives of a job by their first start, and the number of unmatched ones.

    See ``pair`` for sends.
    """

    matched: tuple[Matched, ...]
    alone: int
    """Collectives without a counterpart on another recorded rank."""
    disagreeing: int
    """Collectives whose operation or size differs from the others at the same place."""
    notes: tuple[str, ...]


def shorter_transfers(left: Iterable[tuple[Matched, float]]) -> tuple[Removed, ...]:
    """Return the removed part of the transfer of collectives on devices.

    Each has the share that a fix leaves, 0 to 1.
    """
    rows: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for collective, part in left:
        for rank, side in collective.sides.items():
            if side.kernel != MISSING:
                rows[rank].append((side.kernel, part))
    return tuple(
        Removed(
            table="kernels", rows=np.array([row for row, _ in kept], np.int64),
            left=np.array([part for _, part in kept]), rank=rank,
        )
        for rank, kept in rows.items()
    )  # fmt: skip


def matched_of(operation: str, group: Group, index: int, sides: Mapping[int, Local], *, named: bool = True) -> Matched:
    """Return one collective of at least two sides; the side with the shortest duration arrived last."""
    last = min(sorted(sides), key=lambda rank: sides[rank].duration_ns)
    return Matched(
        operation=operation,
        group=group,
        named=named,
        index=index,
        sides=sides,
        core_ns=sides[last].duration_ns,
        last=last,
    )


def match(job: Job) -> Matching:
    """Match the collectives of a job's ranks."""
    lanes: dict[tuple[Group | str, int | str], dict[int, list[Local]]] = defaultdict(lambda: defaultdict(list))
    named_alike = _named_alike(job)
    for member in job.members:
        for collective in member.collectives:
            if collective.operation in POINT_TO_POINT:
                continue
            if collective.ranks is not None:
                name = collective.group or "" if collective.ranks in named_alike else ""
                lanes[collective.ranks, name][member.rank].append(collective)
            else:
                lanes["", collective.lane][member.rank].append(collective)
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
            matched.append(matched_of(operation, takes_part, index[0], kept, named=named))
    matched.sort(key=lambda collective: min(side.start_ns for side in collective.sides.values()))
    notes = []
    if unnamed:
        notes.append(
            f"process groups of {unnamed:,} collectives are not recorded; those on the same stream of every rank are "
            "assumed to be one group and matched in order"
        )
    for count, what in (
        (alone, "are on one recorded rank only"),
        (disagreeing, "differ in operation or size from the others at their place"),
    ):
        if count:
            notes.append(f"{count:,} collectives {what}")
    return Matching(matched=tuple(matched), alone=alone, disagreeing=disagreeing, notes=tuple(notes))


def _named_alike(job: Job) -> frozenset[Group]:
    """Return the groups whose names agree on all their ranks, so that several groups with equal members differ by name.

    Older versions of torch number the groups of each rank separately.
    """
    names: dict[Group, dict[int, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for member in job.members:
        for collective in member.collectives:
            if collective.ranks is not None:
                names[collective.ranks][member.rank].add(collective.group)
    return frozenset(
        ranks for ranks, by_rank in names.items() if len({frozenset(held) for held in by_rank.values()}) == 1
    )


def _placed(by_rank: Mapping[int, list[Local]]) -> dict[int, dict[Place, Local]]:
    """Rank -> place -> collective."""
    if all(local.sequence is not None for found in by_rank.values() for local in found):
        return {rank: _by_sequence(found) for rank, found in by_rank.items()}
    placed = {}
    for rank, found in by_rank.items():
        before = _first_launched(found)
        placed[rank] = {(index - before, 0): local for index, local in enumerate(found)}
    reference = max(sorted(placed), key=lambda rank: len(placed[rank]))
    return {rank: _shifted(found, placed[reference]) for rank, found in placed.items()}


def _by_sequence(found: Sequence[Local]) -> dict[Place, Local]:
    """Index by recorded number; the kernels of one number (a coalesced call) are distinguished by order."""
    seen: Counter[int] = Counter()
    placed = {}
    for local in found:
        number = local.sequence or 0
        placed[number, seen[number]] = local
        seen[number] += 1
    return placed


def _shifted(found: dict[Place, Local], reference: Mapping[Place, Local]) -> dict[Place, Local]:
    """Shift the collectives to the best agreement of operations and sizes with the reference.

    Unchanged if no shift is better.
    """

    def agreeing(shift: int) -> int:
        return sum(
            (other := reference.get((index + shift, 0))) is not None and _same(local, other)
            for (index, _), local in found.items()
        )

    best = _best_shift(agreeing, len(found))
    return {(index + best, 0): local for (index, _), local in found.items()}


def _best_shift(agreeing: Callable[[int], int], enough: int) -> int:
    """Return the shift up to ``MOST_SHIFT`` with the best agreement, the smallest of equal ones.

    0 if ``enough`` agree there.
    """
    if agreeing(0) == enough:
        return 0
    return max(range(-MOST_SHIFT, MOST_SHIFT + 1), key=lambda shift: (agreeing(shift), -abs(shift)))


def _first_launched(found: Sequence[Local]) -> int:
    """Return the index of the first collective whose launch is in the trace.

    The launches before it preceded the capture.
    """
    return next((index for index, local in enumerate(found) if local.launched), 0)


def _agreeing(sides: Mapping[int, Local]) -> dict[int, Local]:
    """Return the largest set of sides with the same operation and size."""
    sets: list[dict[int, Local]] = []
    for rank, side in sorted(sides.items()):
        for held in sets:
            if _same(side, next(iter(held.values()))):
                held[rank] = side
                break
        else:
            sets.append({rank: side})
    return max(sets, key=len)


def _same(local: Local, other: Local) -> bool:
    """Whether two sides may be the same collective. NCCL's all-to-all kernels consist of sends and receives."""
    if local.operation != other.operation:
        return {local.operation, other.operation} == {"send_recv", "all_to_all"}
    return local.operation not in SAME or _same_size(local, other)


# The clocks of a job's ranks aligned by the ends of collectives, which all ranks leave together.
# A ring or tree ends on all its ranks within microseconds, however late a rank arrived. The offset of a rank is the
# median of (its end - the reference's end) over their common collectives; ranks without a common collective with the
# reference are reached over other ranks. The remaining deviation from the median is the uncertainty: smaller
# differences between ranks have no meaning, and an offset below it counts as 0 (clocks of one host agree).


COMMON_END = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations that no rank can leave before all have sent everything; an all-to-all ends on a rank when it has received.
"""

MIN_SHARED = 3
"""Minimum number of collectives with a common end; with fewer, all collectives are used."""

QUANTILE = 0.9
"""Quantile of the distances from the median end: 1 of 10 may be further away (an interrupted host, a late kernel
record).
"""


class Clocks(Struct, frozen=True, kw_only=True):
    """Offset of each rank's clock and its uncertainty."""

    offset_ns: dict[int, int]
    """Rank -> ns to subtract from its times; 0 for the reference rank."""
    uncertainty_ns: dict[int, int]
    """Rank -> uncertainty of the offset, ns."""
    unreached: tuple[int, ...]
    """Ranks without a common collective with any other rank; their clocks are unknown."""

    @property
    def worst_ns(self) -> int:
        """The largest uncertainty of a rank."""
        return max(self.uncertainty_ns.values(), default=0)

    @property
    def largest_offset_ns(self) -> int:
        """The largest difference between two ranks' clocks."""
        return max(self.offset_ns.values(), default=0) - min(self.offset_ns.values(), default=0)


def align(matched: Sequence[Matched], ranks: Sequence[int]) -> Clocks:
    """Align the clocks of ``ranks``, at least one; the lowest rank is the reference."""
    common = [collective for collective in matched if collective.operation in COMMON_END]
    used = common if len(common) >= MIN_SHARED else list(matched)
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for collective in used:
        held = sorted(collective.sides)
        for first in held[:1]:
            for other in held[1:]:
                ends[first, other].append(collective.sides[other].end_ns - collective.sides[first].end_ns)
    measured = _reached(ends, ranks)
    uncertainty = _uncertainty(used, measured)
    offsets = {rank: value if abs(value) > uncertainty.get(rank, 0) else 0 for rank, value in measured.items()}
    unreached = tuple(rank for rank in ranks if rank not in measured)
    return Clocks(offset_ns=offsets, uncertainty_ns=uncertainty, unreached=unreached)


def _reached(ends: dict[tuple[int, int], list[int]], ranks: Sequence[int]) -> dict[int, int]:
    """Return the offset of each rank, over the link with the most collectives to a rank with a known offset."""
    links: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (first, other), found in ends.items():
        offset = int(np.median(found))
        links[first].append((len(found), other, offset))
        links[other].append((len(found), first, -offset))
    known: dict[int, int] = {}
    ways = [(0, min(ranks), 0)]
    while ways:
        _, rank, offset = heappop(ways)
        if rank not in known:
            known[rank] = offset
            for count, other, further in links[rank]:
                heappush(ways, (-count, other, offset + further))
    return known


def _uncertainty(used: Sequence[Matched], offsets: dict[int, int]) -> dict[int, int]:
    """Return, per rank, the distance of its aligned ends from the median end, at ``QUANTILE``."""
    distances: dict[int, list[float]] = defaultdict(list)
    for collective in used:
        aligned = {rank: side.end_ns - offsets[rank] for rank, side in collective.sides.items() if rank in offsets}
        if len(aligned) < 2:
            continue
        first = min(aligned.values())  # epoch times exceed a float's precision in ns, differences do not
        middle = float(np.median([end - first for end in aligned.values()]))
        for rank, end in aligned.items():
            distances[rank].append(abs(end - first - middle))
    return {rank: int(np.quantile(found, QUANTILE)) for rank, found in distances.items()}


# Sends of one rank paired with the receives of another: wait times and speed of the messages.
# The k-th send from one rank to another in a group is the other rank's k-th receive from it, counted like collectives
# from the first one whose launch is in the trace. Recorded numbers do not help, because NCCL numbers the sends and
# receives of a group on each rank separately. If the recording lacks the peer, a group of two members determines it;
# otherwise it is unknown.
# Both sides end with the message, so the shorter one is the transfer and the rest of the longer one is waiting for the
# other side. If the send's kernel ended before the receive began (on aligned clocks, beyond their uncertainty), the
# transport's buffers held the message: no rank waited, and neither duration is that of the message.


Channel = tuple[Group, int, int]
"""Members of the group (empty if not recorded), sender, receiver."""


class Pair(Struct, frozen=True, kw_only=True):
    """One message with both sides. Times are on each rank's clock."""

    group: Group
    source: int
    destination: int
    send: Local
    receive: Local
    ahead: bool
    """Whether the send ended before the receive began: wait times are unknown and count as 0."""

    @property
    def core_ns(self) -> int:
        """The shorter side, because the last rank to arrive does not wait."""
        return min(self.send.duration_ns, self.receive.duration_ns)

    @property
    def send_wait_ns(self) -> int:
        """Wait of the sender for the receiver, ns."""
        return 0 if self.ahead else self.send.duration_ns - self.core_ns

    @property
    def receive_wait_ns(self) -> int:
        """Wait of the receiver for the sender, ns."""
        return 0 if self.ahead else self.receive.duration_ns - self.core_ns

    @property
    def message_bytes(self) -> int | None:
        """Bytes of the message, if recorded on either side."""
        sent = self.send.message_bytes(2)
        return self.receive.message_bytes(2) if sent is None else sent


class PairKind(Struct, frozen=True, kw_only=True):
    """All messages of one size from one rank to another in a group."""

    group: Group
    """Members of their group; empty where they are not recorded."""
    source: int
    destination: int
    message_bytes: int | None
    count: int
    ahead: int
    """Messages whose send ended before the receive began; excluded from the times of this row."""
    core_ns: int
    """Sum over the messages, ns."""
    median_core_ns: int
    send_wait_ns: int
    """Wait of the sender for the receiver, summed, ns."""
    receive_wait_ns: int
    bandwidth: float | None
    """Median bytes/s; None if sizes are not recorded."""


class Pairing(Struct, frozen=True, kw_only=True):
    """The messages of a job with both sides, by the start of their send, and the number of unpaired ones."""

    pairs: tuple[Pair, ...]
    without_peer: int
    """Sends and receives with unknown peer."""
    alone: int
    """Sends and receives whose other side is not in the recordings."""
    disagreeing: int
    """Sends and receives whose size or time contradicts the other side."""

    @property
    def unpaired(self) -> int:
        """Number of sends and receives without a pair."""
        return self.without_peer + self.alone + self.disagreeing

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader, one sentence each."""
        counts = (
            (
                self.without_peer,
                "have an unknown peer: it is not recorded, and their group is not recorded or larger than two",
            ),
            (self.alone, "have no other side in these recordings"),
            (self.disagreeing, "differ in size or time from the other side at their place"),
        )
        return tuple(f"{count:,} sends and receives {what}" for count, what in counts if count)


NO_PAIRS = Pairing(pairs=(), without_peer=0, alone=0, disagreeing=0)
"""No sends or receives."""


def pair(job: Job, clocks: Clocks) -> Pairing:
    """Pair the sends and receives of a job's ranks."""
    sends: dict[Channel, list[Local]] = defaultdict(list)
    receives: dict[Channel, list[Local]] = defaultdict(list)
    without_peer = 0
    for member in job.members:
        for collective in member.collectives:
            if collective.operation not in POINT_TO_POINT:
                continue
            peer = peer_of(collective, member.rank)
            if peer is None:
                without_peer += 1
            elif collective.operation == "send":
                sends[collective.ranks or (), member.rank, peer].append(collective)
            else:
                receives[collective.ranks or (), peer, member.rank].append(collective)
    pairs: list[Pair] = []
    alone = disagreeing = 0
    for channel in sorted(sends.keys() | receives.keys()):
        group, source, destination = channel
        sent, received = sends[channel], receives[channel]
        together = _together(sent, received)
        alone += len(sent) + len(received) - 2 * len(together)
        for send, receive in together:
            gap = _gap(send, receive, source, destination, clocks)
            if not _same_size(send, receive) or gap == "before":
                disagreeing += 2
                continue
            pairs.append(
                Pair(
                    group=group, source=source, destination=destination, send=send, receive=receive,
                    ahead=gap == "ahead",
                )
            )  # fmt: skip
    pairs.sort(key=lambda pair: (pair.send.start_ns, pair.source, pair.destination))
    return Pairing(pairs=tuple(pairs), without_peer=without_peer, alone=alone, disagreeing=disagreeing)


def peer_of(local: Local, rank: int) -> int | None:
    """Return the rank on the other side, recorded or from a group of two; None if unknown."""
    if local.peer is not None:
        return local.peer if local.peer != rank else None
    if local.ranks is None or len(local.ranks) != 2 or rank not in local.ranks:
        return None
    return local.ranks[0] if local.ranks[1] == rank else local.ranks[1]


def kinds_of(pairing: Pairing) -> tuple[PairKind, ...]:
    """Group the messages by sender, receiver and size; most waiting and transfer time first."""
    held: dict[tuple[Group, int, int, int | None], list[Pair]] = defaultdict(list)
    for pair in pairing.pairs:
        held[pair.group, pair.source, pair.destination, pair.message_bytes].append(pair)
    pair_kinds = [_kind(*key, pairs) for key, pairs in held.items()]
    pair_kinds.sort(
        key=lambda pair_kind: (
            -(pair_kind.core_ns + pair_kind.send_wait_ns + pair_kind.receive_wait_ns),
            pair_kind.source,
            pair_kind.destination,
        )
    )
    return tuple(pair_kinds)


def waits_by_kernel(pairing: Pairing) -> Mapping[tuple[int, int], tuple[int, int]]:
    """Map (rank, row of its ``kernels``) to (wait in ns, rank that it waited for)."""
    result = {}
    for pair in pairing.pairs:
        result[pair.source, pair.send.kernel] = (pair.send_wait_ns, pair.destination)
        result[pair.destination, pair.receive.kernel] = (pair.receive_wait_ns, pair.source)
    return {key: waited for key, waited in result.items() if key[1] != MISSING}


def _kind(group: Group, source: int, destination: int, size: int | None, pairs: Sequence[Pair]) -> PairKind:
    timed = [pair for pair in pairs if not pair.ahead]
    core = int(np.median([pair.core_ns for pair in timed])) if timed else 0
    return PairKind(
        group=group,
        source=source,
        destination=destination,
        message_bytes=size,
        count=len(pairs),
        ahead=len(pairs) - len(timed),
        core_ns=sum(pair.core_ns for pair in timed),
        median_core_ns=core,
        send_wait_ns=sum(pair.send_wait_ns for pair in timed),
        receive_wait_ns=sum(pair.receive_wait_ns for pair in timed),
        bandwidth=size / core * 1e9 if size and core else None,
    )


def _together(sent: Sequence[Local], received: Sequence[Local]) -> list[tuple[Local, Local]]:
    """Pair the k-th of each, shifted by up to ``MOST_SHIFT`` if more sizes agree then."""
    first_sent, first_received = _first_launched(sent), _first_launched(received)
    by_place = {index - first_received: local for index, local in enumerate(received)}

    def at_shift(shift: int) -> list[tuple[Local, Local]]:
        return [
            (local, other)
            for index, local in enumerate(sent)
            if (other := by_place.get(index - first_sent + shift)) is not None
        ]  # fmt: skip

    def agreeing(shift: int) -> int:
        return sum(_same_size(local, other) for local, other in at_shift(shift))

    return at_shift(_best_shift(agreeing, len(at_shift(0))))


def _same_size(local: Local, other: Local) -> bool:
    sizes = (local.message_bytes(2), other.message_bytes(2))
    return None in sizes or sizes[0] == sizes[1]


def _gap(send: Local, receive: Local, source: int, destination: int, clocks: Clocks) -> str | None:
    """Return ``ahead`` if it was sent before it was received, ``before`` if received before sent (not one message).

    None: at the same time, or the clocks of the two are unknown.
    """
    if clocks.unreached and (source in clocks.unreached or destination in clocks.unreached):
        return None
    doubt = clocks.uncertainty_ns.get(source, 0) + clocks.uncertainty_ns.get(destination, 0)
    sent, received = clocks.offset_ns.get(source, 0), clocks.offset_ns.get(destination, 0)
    if send.end_ns - sent + doubt < receive.start_ns - received:
        return "ahead"
    return "before" if receive.end_ns - received + doubt < send.start_ns - sent else None
