"""Sends of one rank put together with the receives of another: who waited for whom, and how fast the message went.

The k-th send from one rank to another in a group is the k-th receive of that other one from it; counted, as with
collectives, from the first one whose launch is in the trace. Recorded numbers do not help: NCCL counts the sends and
receives of a group on each rank for itself, and ranks have different numbers of them. Where the recording names no
peer, the group says it if it has two members; otherwise nobody knows, and it is not guessed.

Both sides end when the message is over, so the shorter one is the transfer and the rest of the longer one is waiting
for the other side. A send whose kernel ended before the receive began (on aligned clocks, by more than they may be off)
was taken in by the transport's buffers: nobody waited, and neither duration is that of the message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.ranks.clocks import Clocks
from perfscope.analyzers.ranks.job import Job
from perfscope.analyzers.ranks.local import Local
from perfscope.analyzers.ranks.matching import MOST_SHIFT, Group
from perfscope.model.collectives import POINT_TO_POINT
from perfscope.model.trace import MISSING

Channel = tuple[Group, int, int]
"""Members of the group (none: not recorded), who sends, who receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairKind:
    """All messages of one size from one rank to another in a group."""

    group: Group
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
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
        for one in member.collectives:
            if one.operation not in POINT_TO_POINT:
                continue
            peer = peer_of(one, member.rank)
            if peer is None:
                without_peer += 1
            elif one.operation == "send":
                sends[one.ranks or (), member.rank, peer].append(one)
            else:
                receives[one.ranks or (), peer, member.rank].append(one)
    found: list[Pair] = []
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
            found.append(
                Pair(
                    group=group, source=source, destination=destination, send=send, receive=receive,
                    ahead=gap == "ahead",
                )
            )  # fmt: skip
    found.sort(key=lambda one: (one.send.start_ns, one.source, one.destination))
    return Pairing(pairs=tuple(found), without_peer=without_peer, alone=alone, disagreeing=disagreeing)


def peer_of(one: Local, rank: int) -> int | None:
    """The rank on the other side: as recorded, else the other member of a group of two; None where nothing tells."""
    if one.peer is not None:
        return one.peer if one.peer != rank else None
    if one.ranks is None or len(one.ranks) != 2 or rank not in one.ranks:
        return None
    return one.ranks[0] if one.ranks[1] == rank else one.ranks[1]


def kinds_of(pairing: Pairing) -> tuple[PairKind, ...]:
    """Messages by who, to whom and size; those with most waiting and transfer first."""
    held: dict[tuple[Group, int, int, int | None], list[Pair]] = defaultdict(list)
    for one in pairing.pairs:
        held[one.group, one.source, one.destination, one.message_bytes].append(one)
    found = [_kind(*key, pairs) for key, pairs in held.items()]
    found.sort(key=lambda one: (-(one.core_ns + one.send_wait_ns + one.receive_wait_ns), one.source, one.destination))
    return tuple(found)


def waits_by_kernel(pairing: Pairing) -> Mapping[tuple[int, int], tuple[int, int]]:
    """(rank, row of its ``kernels``) -> (what it waited there in ns, for which rank)."""
    return _waits(pairing, lambda side: side.kernel)


def waits_by_slice(pairing: Pairing) -> Mapping[tuple[int, int], tuple[int, int]]:
    """The same for messages on the host: (rank, row of its ``slices``)."""
    return _waits(pairing, lambda side: side.slice if side.kernel == MISSING else MISSING)


def _waits(pairing: Pairing, row_of: Callable[[Local], int]) -> Mapping[tuple[int, int], tuple[int, int]]:
    found = {}
    for one in pairing.pairs:
        found[one.source, row_of(one.send)] = (one.send_wait_ns, one.destination)
        found[one.destination, row_of(one.receive)] = (one.receive_wait_ns, one.source)
    return {key: waited for key, waited in found.items() if key[1] != MISSING}


def _kind(group: Group, source: int, destination: int, size: int | None, pairs: Sequence[Pair]) -> PairKind:
    timed = [one for one in pairs if not one.ahead]
    core = int(np.median([one.core_ns for one in timed])) if timed else 0
    return PairKind(
        group=group,
        source=source,
        destination=destination,
        message_bytes=size,
        count=len(pairs),
        ahead=len(pairs) - len(timed),
        core_ns=sum(one.core_ns for one in timed),
        median_core_ns=core,
        send_wait_ns=sum(one.send_wait_ns for one in timed),
        receive_wait_ns=sum(one.receive_wait_ns for one in timed),
        bandwidth=size / core * 1e9 if size and core else None,
    )


def _together(sent: Sequence[Local], received: Sequence[Local]) -> list[tuple[Local, Local]]:
    """The k-th of each, moved along by up to ``MOST_SHIFT`` only where more sizes agree then."""
    first_sent, first_received = _first_launched(sent), _first_launched(received)
    place = {at - first_received: one for at, one in enumerate(received)}

    def at_shift(shift: int) -> list[tuple[Local, Local]]:
        return [
            (one, other)
            for at, one in enumerate(sent)
            if (other := place.get(at - first_sent + shift)) is not None
        ]  # fmt: skip

    def agreeing(shift: int) -> tuple[int, int]:
        return sum(_same_size(one, other) for one, other in at_shift(shift)), -abs(shift)

    unmoved = at_shift(0)
    if all(_same_size(one, other) for one, other in unmoved):
        return unmoved
    return at_shift(max(range(-MOST_SHIFT, MOST_SHIFT + 1), key=agreeing))


def _first_launched(found: Sequence[Local]) -> int:
    return next((at for at, one in enumerate(found) if one.launched), 0)


def _same_size(one: Local, other: Local) -> bool:
    sizes = (one.message_bytes(2), other.message_bytes(2))
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
