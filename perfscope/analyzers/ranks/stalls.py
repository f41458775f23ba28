"""Collectives that take far longer than their links need, of all ranks of a job, or of one rank with link counters.

Of a job, what counts is the core (the shortest duration over the ranks), so waiting for a late rank is not in it. Of
one rank alone the duration holds the waiting; where counters of its links were recorded, the time in which they
carried nothing is taken off: waiting for others, launching and protocol leave links idle, a slow transfer does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfscope.analyzers.devices.topology import Topology
from perfscope.analyzers.time.link_counters import IDLE, LinkUse, has_counters, network_use, nvlink_use
from perfscope.analyzers.ranks.ideal import Ideal, Placement, across, placement, within
from perfscope.analyzers.ranks.job import Member
from perfscope.analyzers.ranks.lateness import compute_intervals
from perfscope.analyzers.ranks.local import Local, locals_of
from perfscope.analyzers.ranks.matching import Matched
from perfscope.analyzers.ranks.sets import RankSet
from perfscope.analyzers.ranks.table import device_of
from perfscope.analyzers.time.exposure import exposed_communication
from perfscope.model.intervals import Intervals, covered, merge, union
from perfscope.model.trace import MISSING, Trace

BY_BYTES = 4.0
"""Times the latency that the bytes take: below it the latency and its spread decide, not the links."""

BESIDE = 0.2
"""Of a collective, beside computing or another communication: above it contention may explain it."""

UNKNOWN = "the links between these devices are not known: what a collective could take is not either"
SIZELESS = "the sizes of the collectives are not recorded: record shapes (record_shapes=True)"
SPANNING = (
    "groups span nodes, and what joins the nodes is not recorded: name it (--topology FILE with [network], or [node] "
    "ranks if these ranks share a node)"
)
UNEVEN = "groups span nodes with different numbers of ranks on each: no ideal is known for them"
INCOMPLETE = "ranks of the groups are missing: what came last, and so how long the collective itself took, is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective held against its links."""

    operation: str
    number: int
    group: tuple[int, ...]
    """Its ranks; empty where only their number is known."""
    size: int
    message_bytes: int
    took_ns: int
    """Without waiting for others."""
    waited_ns: int
    """The longest wait of a rank; of one rank alone, the time its links were idle."""
    algorithm: str | None
    protocol: str | None
    rank: int | None
    """The one that came last."""
    trace: Trace
    side: Local
    """The collective on that rank."""
    ideal: Ideal
    ideal_ns: float = 0.0
    """With the latency."""
    use: LinkUse | None = None
    judged: bool = True
    """False: it only shows the latency."""

    @property
    def exposed_ns(self) -> int:
        """Of its rank: the part behind which nothing computed."""
        return int(self.trace.fact(exposed_communication)[self.side.kernel])

    @property
    def cost_ns(self) -> int:
        """Upper bound of what links at their peak would save."""
        return int(min(max(0.0, self.took_ns - self.ideal_ns), self.exposed_ns))


def link_of(trace: Trace) -> tuple[str, float] | None:
    """(name, bytes/s that a device sends) of the links in a node: as the user says, else by the hardware tables."""
    topology = trace.topology
    if topology is not None and topology.link is not None and topology.link_bandwidth is not None:
        return topology.link, topology.link_bandwidth
    device = device_of(trace)
    if device is None or device.link_bandwidth is None:
        return None
    return device.link or "its links", device.link_bandwidth


def of_job(ranks: RankSet) -> tuple[list[Call] | None, str]:
    """Collectives of a job that could be held against their links, with their ideal; None and why if none could."""
    members = {member.rank: member for member in ranks.job.members}
    trace = ranks.job.members[0].trace
    if link_of(trace) is None and (trace.topology is None or trace.topology.network is None):
        return None, UNKNOWN
    sampled = tuple(rank for rank, member in members.items() if has_counters(member.trace))
    why = SIZELESS
    calls: list[Call] = []
    for one in ranks.matching.matched:
        side = one.sides[one.last]
        message = one.message_bytes
        if not message or side.kernel == MISSING:
            continue
        if not one.complete or not (one.named or not ranks.job.missing):
            why = INCOMPLETE
            continue
        place = placement(one.group, trace.topology)
        algorithm, protocol = _kind(one.sides.values())
        ideal, reason = _ideal(one.operation, algorithm, message, place, trace)
        if ideal is None:
            why = reason
            continue
        calls.append(
            Call(
                operation=one.operation,
                number=one.index,
                group=one.group,
                size=one.size,
                message_bytes=message,
                took_ns=one.core_ns,
                waited_ns=max(one.wait_ns(rank) for rank in one.sides),
                algorithm=algorithm,
                protocol=protocol,
                rank=one.last,
                trace=members[one.last].trace,
                side=side,
                ideal=ideal,
                use=_use_in(one, members, sampled, ideal),
            )
        )
    return (calls, "") if calls else (None, why)


def of_rank(trace: Trace) -> list[Call]:
    """Collectives of one rank, ``judged`` where their links were sampled all along.

    Time in which the links were idle is then not in ``took_ns``; of the others it is the whole duration.
    """
    calls: list[Call] = []
    for one in trace.fact(locals_of):
        message, size = one.message_bytes(), len(one.ranks) if one.ranks else one.size
        if one.kernel == MISSING or not message or size is None or one.duration_ns <= 0:
            continue
        place = placement(one.ranks, trace.topology) if one.ranks else _first_node(size, trace.topology)
        ideal, _ = _ideal(one.operation, one.algorithm, message, place, trace)
        if ideal is None:
            continue
        use = _use(trace, one.kernel, one.start_ns, one.end_ns, ideal)
        # where its bytes would not show in the counters, that they are idle says nothing
        shown = use is not None and ideal.ns >= IDLE * one.duration_ns
        # links that stay idle from begin to end did not carry it at all: that is no waiting
        idle = round(use.idle * one.duration_ns) if use is not None and use.idle < 1 else 0
        calls.append(
            Call(
                operation=one.operation,
                number=one.sequence if one.sequence is not None else len(calls),
                group=one.ranks or (),
                size=size,
                message_bytes=message,
                took_ns=one.duration_ns - idle,
                waited_ns=idle,
                algorithm=one.algorithm,
                protocol=one.protocol,
                rank=trace.source.rank,
                trace=trace,
                side=one,
                ideal=ideal,
                use=use,
                judged=shown,
            )
        )
    return calls


def stalled(calls: Sequence[Call], limit: float, limit_ll: float) -> Iterator[Call]:
    """Those whose bytes, not latency, make up their ideal and that take more than ``limit`` times of it.

    ``limit_ll``: with protocol LL. What runs beside computing is left out. Within nodes and between them is held
    apart: the latency is another.
    """
    others: dict[tuple[int, int], Intervals] = {}
    for network in (False, True):
        held = [one for one in calls if one.ideal.network == network]
        if not held:
            continue
        smallest = min(one.message_bytes for one in held)
        latency = min(one.took_ns for one in held if one.message_bytes == smallest)
        judged = [replace(one, ideal_ns=latency + one.ideal.ns) for one in held if one.ideal.ns >= BY_BYTES * latency]
        if not judged and all(one.message_bytes == smallest for one in held):
            # one size only: it cannot show its own latency, so its bytes are held to the links alone
            judged = [replace(one, ideal_ns=one.ideal.ns) for one in held]
        for one in judged:
            if (
                one.judged
                and one.took_ns > (limit_ll if one.protocol == "LL" else limit) * one.ideal_ns
                and not _beside(one, others)
            ):
                yield one


def _beside(one: Call, others: dict[tuple[int, int], Intervals]) -> bool:
    """Whether what computes, or communicates on another stream, beside it may explain it.

    ``others``: what runs beside each stream of a trace, filled as it is asked for.
    """
    side, key = one.side, (id(one.trace), one.side.lane)
    if key not in others:
        others[key] = merge(one.trace.fact(compute_intervals), _others(one))
    beside = others[key]
    return int(covered(beside, [side.start_ns], [side.end_ns])[0]) >= BESIDE * side.duration_ns


def _others(one: Call) -> Intervals:
    """When its rank communicated on other streams."""
    found = [other for other in one.trace.fact(locals_of) if other.kernel != MISSING and other.lane != one.side.lane]
    return union([other.start_ns for other in found], [other.end_ns for other in found])


def _ideal(
    operation: str, algorithm: str | None, message: int, place: Placement | None, trace: Trace
) -> tuple[Ideal | None, str]:
    """The ideal, or None and why not."""
    link, topology = link_of(trace), trace.topology
    if place is None:
        return None, UNEVEN
    if place.nodes == 1:
        found = None if link is None else within(operation, algorithm, message, place.ranks, link)
    elif topology is None or topology.network is None:
        return None, SPANNING
    else:
        found = across(operation, algorithm, message, place, link, topology.network)
    return found, UNKNOWN if link is None else "nccl-tests measures none of these operations: no ideal is known"


def _first_node(size: int, topology: Topology | None) -> Placement | None:
    """Of a group whose members are not recorded: on one node if it fits there, as NVLink counters will show."""
    found = placement(range(size), topology)
    return found if found is not None and found.nodes == 1 else None


def _kind(sides: Collection[Local]) -> tuple[str | None, str | None]:
    """(algorithm, protocol), as any of the ranks tells; LL if one used it."""
    algorithms = [side.algorithm for side in sides if side.algorithm]
    protocols = [side.protocol for side in sides if side.protocol]
    return next(iter(algorithms), None), "LL" if "LL" in protocols else next(iter(protocols), None)


def _use_in(one: Matched, members: Mapping[int, Member], sampled: Sequence[int], ideal: Ideal) -> LinkUse | None:
    """By the counters of the rank that came last, else of the first of ``sampled``: the last ``core_ns`` of each."""
    for rank in sorted(set(sampled).intersection(one.sides), key=lambda rank: (rank != one.last, rank)):
        side = one.sides[rank]
        use = _use(members[rank].trace, side.kernel, side.end_ns - one.core_ns, side.end_ns, ideal)
        if use is not None:
            return use
    return None


def _use(trace: Trace, kernel: int, start_ns: int, end_ns: int, ideal: Ideal) -> LinkUse | None:
    if not ideal.network:
        return nvlink_use(trace, kernel, start_ns, end_ns) if ideal.link.startswith("NVLink") else None
    network = trace.topology.network if trace.topology is not None else None
    return None if network is None else network_use(trace, network.card_bandwidth * network.cards, start_ns, end_ns)
