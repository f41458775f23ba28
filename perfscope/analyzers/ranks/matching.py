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
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
from msgspec import Struct

from perfscope.analyzers.ranks.job import Job, Local
from perfscope.model.collectives import POINT_TO_POINT
from perfscope.model.finding import Removed
from perfscope.model.trace import MISSING

MOST_SHIFT = 16
"""Collectives that one capture caught and another did not: a step's worth of bookkeeping, not a step."""

SAME = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Operations whose message has the same size on every rank."""

Place = tuple[int, int]
"""Number in the group, and which of the collectives of that number (a coalesced call launches several)."""
Group = tuple[int, ...]


class Matched(Struct, frozen=True, kw_only=True):
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
        results = [size for side in self.sides.values() if (size := side.message_bytes(len(self.group))) is not None]
        return max(results, default=None)


class Matching(Struct, frozen=True, kw_only=True):
    """All matched collectives of a job by their first start, and what could not be matched; for sends see ``pair``."""

    matched: tuple[Matched, ...]
    alone: int
    """Collectives that no other recorded rank shows."""
    disagreeing: int
    """Collectives whose operation or size is not that of the others at the same place."""
    notes: tuple[str, ...]


def shorter_transfers(left: Iterable[tuple[Matched, float]]) -> tuple[Removed, ...]:
    """Collectives on devices of which a fix leaves a part of the transfer, 0 to 1."""
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
    """One collective of at least two sides; the one with the shortest duration came last."""
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
    """The collectives of a job's ranks, put together."""
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
            f"process groups of {unnamed:,} collectives are not recorded: those on the same stream of every rank are "
            "held to be of one group, and matched in order"
        )
    for count, what in (
        (alone, "are on one recorded rank only"),
        (disagreeing, "differ in operation or size from the others at their place"),
    ):
        if count:
            notes.append(f"{count:,} collectives {what}")
    return Matching(matched=tuple(matched), alone=alone, disagreeing=disagreeing, notes=tuple(notes))


def _named_alike(job: Job) -> frozenset[Group]:
    """Members whose groups have the same names on all their ranks: several groups of them are told apart by name.

    Older versions of torch number groups on each rank for itself.
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
    """By recorded number; the kernels of one number (of a coalesced call) are told apart by their order."""
    seen: Counter[int] = Counter()
    placed = {}
    for local in found:
        number = local.sequence or 0
        placed[number, seen[number]] = local
        seen[number] += 1
    return placed


def _shifted(found: dict[Place, Local], reference: Mapping[Place, Local]) -> dict[Place, Local]:
    """Moved along until most operations and sizes agree with the reference; not moved unless more agree then."""

    def agreeing(shift: int) -> int:
        return sum(
            (other := reference.get((index + shift, 0))) is not None and _same(local, other)
            for (index, _), local in found.items()
        )

    best = _best_shift(agreeing, len(found))
    return {(index + best, 0): local for (index, _), local in found.items()}


def _best_shift(agreeing: Callable[[int], int], enough: int) -> int:
    """The shift up to ``MOST_SHIFT`` with which most agree, of several the smallest; 0 where ``enough`` agree then."""
    if agreeing(0) == enough:
        return 0
    return max(range(-MOST_SHIFT, MOST_SHIFT + 1), key=lambda shift: (agreeing(shift), -abs(shift)))


def _first_launched(found: Sequence[Local]) -> int:
    """Place of the first one whose launch is in the trace: those before it were launched before the capture began."""
    return next((index for index, local in enumerate(found) if local.launched), 0)


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


def _same(local: Local, other: Local) -> bool:
    """Whether two ranks may have seen the same collective. NCCL's all-to-all kernels are of sends and receives."""
    if local.operation != other.operation:
        return {local.operation, other.operation} == {"send_recv", "all_to_all"}
    return local.operation not in SAME or _same_size(local, other)


# The clocks of a job's ranks put on one: by the ends of collectives, which all ranks leave together.
#
# A ring or tree ends on all its ranks within microseconds, however late one of them came. The offset of a rank is the
# median of (its end - the reference's end) over the collectives they share; ranks that share none with the reference
# are reached over others. What remains around the median is the uncertainty: no difference between ranks below it
# means anything, and an offset that is smaller than it is taken as none (clocks of one host agree).


COMMON_END = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations that no rank can leave before all have sent everything; an all-to-all it leaves when it has received."""

MIN_SHARED = 3
"""Collectives with a common end; with fewer, all collectives are used."""

QUANTILE = 0.9
"""Of the distances from the median end: one in ten may lie further out (an interrupted host, a late kernel record)."""


class Clocks(Struct, frozen=True, kw_only=True):
    """What to subtract from a rank's times, and how far that may be off."""

    offset_ns: dict[int, int]
    """By rank; the reference rank's is 0."""
    uncertainty_ns: dict[int, int]
    """By rank."""
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
    """Offset by rank, each over the link with most collectives to a rank that is known already."""
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
    """By rank: how far its aligned ends lie from the median end, at ``QUANTILE``."""
    distances: dict[int, list[float]] = defaultdict(list)
    for collective in used:
        aligned = {rank: side.end_ns - offsets[rank] for rank, side in collective.sides.items() if rank in offsets}
        if len(aligned) < 2:
            continue
        first = min(aligned.values())  # epoch times do not fit a float to the nanosecond, differences do
        middle = float(np.median([end - first for end in aligned.values()]))
        for rank, end in aligned.items():
            distances[rank].append(abs(end - first - middle))
    return {rank: int(np.quantile(found, QUANTILE)) for rank, found in distances.items()}


# Sends of one rank put together with the receives of another: who waited for whom, and how fast the message went.
#
# The k-th send from one rank to another in a group is the k-th receive of that other one from it; counted, as with
# collectives, from the first one whose launch is in the trace. Recorded numbers do not help: NCCL counts the sends
# and receives of a group on each rank for itself, and ranks have different numbers of them. Where the recording names
# no peer, the group says it if it has two members; otherwise it is not known, and not guessed.
#
# Both sides end when the message is over, so the shorter one is the transfer and the rest of the longer one is
# waiting for the other side. A send whose kernel ended before the receive began (on aligned clocks, by more than they
# may be off) was taken in by the transport's buffers: nobody waited, and neither duration is that of the message.


Channel = tuple[Group, int, int]
"""Members of the group (none: not recorded), who sends, who receives."""


class Pair(Struct, frozen=True, kw_only=True):
    """One message, seen from both sides. Times are each rank's own."""

    group: Group
    source: int
    destination: int
    send: Local
    receive: Local
    ahead: bool
    """The send was over before the receive began: waits are not known and count as none."""

    @property
    def core_ns(self) -> int:
        """The shorter side: whoever comes last waits for nobody."""
        return min(self.send.duration_ns, self.receive.duration_ns)

    @property
    def send_wait_ns(self) -> int:
        """What the sender waited for the receiver."""
        return 0 if self.ahead else self.send.duration_ns - self.core_ns

    @property
    def receive_wait_ns(self) -> int:
        """What the receiver waited for the sender."""
        return 0 if self.ahead else self.receive.duration_ns - self.core_ns

    @property
    def message_bytes(self) -> int | None:
        """Bytes of the message, where recorded on either side."""
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
    """Messages whose send was over before the receive began: in none of the times here."""
    core_ns: int
    """Summed over the messages."""
    median_core_ns: int
    send_wait_ns: int
    """What the sender waited for the receiver, summed."""
    receive_wait_ns: int
    bandwidth: float | None
    """Bytes/s of the median; None where sizes are not recorded."""


class Pairing(Struct, frozen=True, kw_only=True):
    """The messages of a job that have both sides, by the start of their send, and what could not be paired."""

    pairs: tuple[Pair, ...]
    without_peer: int
    """Sends and receives that do not say with whom."""
    alone: int
    """Those whose other side is not in the recordings."""
    disagreeing: int
    """Those whose size, or time, is not that of the other side."""

    @property
    def unpaired(self) -> int:
        """Sends and receives that are in no pair."""
        return self.without_peer + self.alone + self.disagreeing

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know, one sentence each."""
        counts = (
            (
                self.without_peer,
                "do not say with whom: the recording names no peer, and their group is not recorded or larger than two",
            ),
            (self.alone, "have no other side in these recordings"),
            (self.disagreeing, "differ in size or time from the other side at their place"),
        )
        return tuple(f"{count:,} sends and receives {what}" for count, what in counts if count)


NO_PAIRS = Pairing(pairs=(), without_peer=0, alone=0, disagreeing=0)
"""Nothing that was sent to a single rank."""


def pair(job: Job, clocks: Clocks) -> Pairing:
    """The sends and receives of a job's ranks, put together."""
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
    """The rank on the other side: as recorded, else the other member of a group of two; None where nothing tells."""
    if local.peer is not None:
        return local.peer if local.peer != rank else None
    if local.ranks is None or len(local.ranks) != 2 or rank not in local.ranks:
        return None
    return local.ranks[0] if local.ranks[1] == rank else local.ranks[1]


def kinds_of(pairing: Pairing) -> tuple[PairKind, ...]:
    """Messages by who, to whom and size; those with most waiting and transfer first."""
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
    """(rank, row of its ``kernels``) -> (what it waited there in ns, for which rank)."""
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
    """The k-th of each, moved along by up to ``MOST_SHIFT`` only where more sizes agree then."""
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
    """``ahead``: sent before it was received; ``before``: received before it was sent, which cannot be one message.

    None: at the same time, or the clocks of the two are not known.
    """
    if clocks.unreached and (source in clocks.unreached or destination in clocks.unreached):
        return None
    doubt = clocks.uncertainty_ns.get(source, 0) + clocks.uncertainty_ns.get(destination, 0)
    sent, received = clocks.offset_ns.get(source, 0), clocks.offset_ns.get(destination, 0)
    if send.end_ns - sent + doubt < receive.start_ns - received:
        return "ahead"
    return "before" if receive.end_ns - received + doubt < send.start_ns - sent else None
