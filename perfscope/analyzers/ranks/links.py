"""Collectives of a job that take far longer than their links need.

The measure is the core (the shortest duration over the ranks), which excludes waiting for a late rank.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Network, Topology
from perfscope.analyzers.ranks.job import Local, locals_of
from perfscope.analyzers.ranks.matching import Matched
from perfscope.analyzers.ranks.sets import RankSet, device_of
from perfscope.analyzers.ranks.waits import compute_intervals
from perfscope.analyzers.spans import union_of
from perfscope.analyzers.time import exposed_communication
from perfscope.model.collectives import bus_bytes, bus_factor
from perfscope.model.intervals import Int64, Intervals, covered, merge, union
from perfscope.model.trace import MISSING, Trace

_NVLINK = re.compile(r"GPU (\d{1,4}): NVLink (RX|TX) (.+? Data|Throughput|Bandwidth)(?: \[(.*)\])?")
GAP = 2.0
"""Multiple of the usual distance between samples. After a longer gap samples were lost, and a sample covers only the
usual distance.
"""

FULL = 1.0
"""Maximum share of the peak. Counters are rounded separately, so their sum may exceed it."""

NODE = 8
"""Devices per node that NVLink or Infinity Fabric joins; larger domains (NVL72) are analyzed in groups of eight."""

BY_BYTES = 4.0
"""Minimum ratio of transfer time to latency; below it, the latency and its variation determine the time, not the links.
"""

CONTENTION_SHARE = 0.2
"""Share of a collective that overlaps compute or another communication, above which contention may explain it."""

UNKNOWN = "the links between these devices are unknown, so the ideal time of a collective is too"

SIZELESS = "the sizes of the collectives are not recorded: record shapes (record_shapes=True)"

SPANNING = (
    "groups span nodes, and the network between them is not recorded: specify it (--topology FILE with [network], or "
    "[node] ranks if these ranks share a node)"
)

UNEVEN = "groups span nodes with different numbers of ranks on each: their ideal time is unknown"

INCOMPLETE = "ranks of the groups are missing, so the last arrival and the time of the collective itself are unknown"


# Samples of NVLink counters while collectives ran, by GPU.
# Nsight Systems exports ``GPU 0: NVLink TX Requests User Data [Throughput %]`` and similar counters: integer percent of
# the peak of all links of the GPU in one direction. Requests and responses, user and protocol data have separate
# counters; together they fill the links, so they are added. Older exports have a single ``NVLink TX Throughput``.
# A sample covers the time since the previous sample. NVIDIA notes that inactive links may read as 100 percent, so a GPU
# whose links are full in every sample of a recording is omitted.


class Samples(Struct, frozen=True, kw_only=True):
    """Samples of one link in order of time; each is the mean over ``[start, end)``. Shapes (n,)."""

    starts_ns: Int64
    ends_ns: Int64
    values: npt.NDArray[np.float64]
    """Load of the fuller direction, as a share of the peak."""


class LinkUse(Struct, frozen=True, kw_only=True):
    """Load of a link during communication."""

    link: str
    samples: int
    mean: float
    most: float
    unit: str


def link_use(trace: Trace) -> list[LinkUse]:
    """Return the load of each link with samples during communication."""
    found = []
    for gpu, samples in trace.fact(link_counters).items():
        lasting = samples.ends_ns - samples.starts_ns
        if len(samples.values):
            mean = float((samples.values * lasting).sum() / max(1, int(lasting.sum())))
            most = float(samples.values.max())
            name = f"NVLink of GPU {gpu}"
            found.append(
                LinkUse(link=name, samples=len(samples.values), mean=mean, most=most, unit="share of its peak")
            )
    return found


def link_counters(trace: Trace) -> dict[int, Samples]:
    """Return, by device number, the link samples during communication kernels; empty without counters."""
    counters = trace.rows["counters"]
    kernels = trace.rows["kernels"]
    talking = kernels["communication"] if len(kernels) else np.empty(0, bool)
    spans = union_of(kernels, talking)
    nvlink: dict[int, dict[str, list[Int64]]] = defaultdict(lambda: defaultdict(list))
    for code in np.unique(counters["name"]).tolist() if len(counters) else ():
        counter = _NVLINK.fullmatch(trace.text(code))
        if counter and counter[4] in (None, "Throughput %"):
            nvlink[int(counter[1])][counter[2]].append(np.flatnonzero(counters["name"] == code))
    times, values = counters["time_ns"], counters["value"]
    gpus = {}
    for gpu in sorted(nvlink):
        sides = [_summed(times, values / 100, np.concatenate(parts)) for parts in nvlink[gpu].values()]
        moments = np.unique(np.concatenate([moment for moment, _ in sides]))
        share = np.zeros(len(moments))
        for moment, value in sides:
            index = np.searchsorted(moments, moment)
            share[index] = np.maximum(share[index], value)
        if len(moments) and share.min() < FULL:
            gpus[gpu] = _during(moments, np.minimum(share, FULL), spans)
    return gpus


def _summed(times: Int64, values: npt.NDArray[np.float64], rows: Int64) -> tuple[Int64, npt.NDArray[np.float64]]:
    """Sum the values of the rows with equal times."""
    moments, inverse = np.unique(times[rows], return_inverse=True)
    added = np.bincount(inverse.reshape(-1), weights=values[rows], minlength=len(moments))
    return moments, added.astype(np.float64)


def _during(moments: Int64, values: npt.NDArray[np.float64], spans: Intervals) -> Samples:
    """Return the samples that overlap ``spans``, with the time that each covers."""
    if len(moments) < 2:  # the interval of a single sample is unknown
        return Samples(starts_ns=moments[:0], ends_ns=moments[:0], values=values[:0])
    apart = np.diff(moments)
    usual = int(np.median(apart))
    lasting = np.concatenate(([usual], np.where(apart > GAP * usual, usual, apart)))
    starts = moments - lasting
    kept = covered(spans, starts, moments) > 0
    return Samples(starts_ns=starts[kept], ends_ns=moments[kept], values=values[kept])


# Shortest possible time of a collective, from the bytes that cross links inside a node and between nodes.
# Within a node a device sends the message times the factor of nccl-tests (``doc/PERFORMANCE.md``: bus bandwidth) over
# its links. A group that spans ``N`` nodes with ``g`` of its ``n`` ranks in each has two stages that overlap, so the
# slower one counts (same document: bus bandwidth is limited by the narrowest part of the path):
# - a ring enters and leaves each node once: a node sends the message times the factor of ``n`` over the network cards
#   of its ``g`` ranks, a device as much over its links. This is also assumed if the algorithm is unknown;
# - trees are a hierarchy: between nodes a node is one rank of ``N``, within it a device is one of ``g``. If the network
#   reduces (CollNet, NVLS over nodes), a node sends the message once;
# - all-to-all sends each part directly to its rank: a node sends the buffers of ``g`` ranks, (N-1)/N of each; a device
#   sends g-1 of its n parts over its links.
# NVLS reduces in the switch of a node: a device sends (1 + 1/n) of the message there.


class Placement(Struct, frozen=True, kw_only=True):
    """Distribution of a group over nodes, with the same number of ranks on each."""

    nodes: int
    ranks: int
    """Ranks of the group per node."""
    of: int
    """Ranks of the job per node."""


class Ideal(Struct, frozen=True, kw_only=True):
    """The slower stage of a collective."""

    sent_bytes: float
    """Bytes sent by a device over its links, or by a node over its cards."""
    link: str
    bandwidth: float
    """Bytes/s in one direction of the device's links or of all the cards."""
    network: bool
    """Whether it is the stage between nodes."""

    @property
    def ns(self) -> float:
        """Time of the bytes, without latency."""
        return self.sent_bytes / self.bandwidth * 1e9


def placement(group: Sequence[int], topology: Topology | None) -> Placement | None:
    """Return the distribution of a group over nodes.

    None if nodes have different numbers of ranks, or a rank has no node.

    Without a topology, nodes are blocks of ``NODE`` ranks.
    """
    nodes: dict[int, int] = {}
    for rank in group:
        node = rank // NODE if topology is None else topology.node_of(rank)
        if node is None:
            return None
        nodes[node] = nodes.get(node, 0) + 1
    counts = set(nodes.values())
    if len(counts) != 1:
        return None
    return Placement(nodes=len(nodes), ranks=counts.pop(), of=NODE if topology is None else topology.ranks)


def within(operation: str, algorithm: str | None, message: int, ranks: int, link: tuple[str, float]) -> Ideal | None:
    """Return the ideal of a group on one node; None for operations that nccl-tests does not measure.

    ``link``: name, bytes/s of a device.
    """
    sent = bus_bytes(operation, message, ranks, algorithm)
    return None if sent is None else Ideal(sent_bytes=sent, link=link[0], bandwidth=link[1], network=False)


def across(
    operation: str,
    algorithm: str | None,
    message: int,
    location: Placement,
    link: tuple[str, float] | None,
    network: Network,
) -> Ideal | None:
    """Return the slower stage of a group that spans nodes.

    ``link``: link inside the nodes; only groups with one rank per node need none. None if a stage is unknown: unknown
    links inside nodes, operations that nccl-tests does not measure, sends and receives.
    """
    ring = algorithm is None or algorithm == "RING"
    outer = bus_factor(operation, location.ranks * location.nodes if ring else location.nodes)
    inner = (
        bus_factor(operation, location.ranks * location.nodes if ring else location.ranks)
        if location.ranks > 1
        else None
    )
    if outer is None or operation in ("send_recv", "send", "recv"):
        return None
    in_network = algorithm is not None and (algorithm.startswith("COLLNET") or algorithm == "NVLS")
    between = message * (min(outer, 1.0) if in_network else outer)
    inside = message * (inner or 0.0)
    if operation == "all_to_all":
        between = message * location.ranks * (location.nodes - 1) / location.nodes
        inside = message * (location.ranks - 1) / (location.ranks * location.nodes)
    elif algorithm is not None and algorithm.startswith("NVLS") and location.ranks > 1:
        inside = min(inside, message * (1 + 1 / location.ranks))
    cards = Ideal(
        sent_bytes=between,
        link=f"the network cards ({network.link})",
        bandwidth=network.bandwidth(location.ranks, location.of),
        network=True,
    )
    if not inside:
        return cards
    if link is None:
        return None
    links = Ideal(sent_bytes=inside, link=link[0], bandwidth=link[1], network=False)
    return max(cards, links, key=lambda stage: stage.ns)


class Call(Struct, frozen=True, kw_only=True):
    """A collective compared with its links."""

    operation: str
    number: int
    group: tuple[int, ...]
    """Its ranks."""
    message_bytes: int
    took_ns: int
    """Duration without waiting for other ranks."""
    waited_ns: int
    """Longest wait of a rank."""
    algorithm: str | None
    protocol: str | None
    rank: int
    """Rank that arrived last."""
    trace: Trace
    side: Local
    """The collective on that rank."""
    collective: Matched
    ideal: Ideal
    ideal_ns: float = 0.0
    """Ideal time including latency."""

    @property
    def exposed_ns(self) -> int:
        """Part of the duration on its rank during which nothing computed."""
        return int(self.trace.fact(exposed_communication)[self.side.kernel])

    @property
    def cost_ns(self) -> int:
        """Upper bound of the time that links at their peak would save."""
        return int(min(max(0.0, self.took_ns - self.ideal_ns), self.exposed_ns))


def link_of(trace: Trace) -> tuple[str, float] | None:
    """Return (name, bytes/s that a device sends) of the links in a node, from the user or from the hardware tables."""
    topology = trace.topology
    if topology is not None and topology.link is not None and topology.link_bandwidth is not None:
        return topology.link, topology.link_bandwidth
    device = device_of(trace)
    if device is None or device.link_bandwidth is None:
        return None
    return device.link or "its links", device.link_bandwidth


def of_job(ranks: RankSet) -> tuple[list[Call] | None, str]:
    """Return the collectives of a job with an ideal time; without any, None and the reason."""
    members = {member.rank: member for member in ranks.job.members}
    trace = ranks.job.members[0].trace
    if link_of(trace) is None and (trace.topology is None or trace.topology.network is None):
        return None, UNKNOWN
    why = SIZELESS
    calls: list[Call] = []
    for collective in ranks.matching.matched:
        side = collective.sides[collective.last]
        message = round((collective.message_bytes or 0) * _fullest(collective))
        if not message or side.kernel == MISSING:
            continue
        if not collective.complete or not (collective.named or not ranks.job.missing):
            why = INCOMPLETE
            continue
        location = placement(collective.group, trace.topology)
        algorithm, protocol = _kind(collective.sides.values())
        ideal, reason = _ideal(collective.operation, algorithm, message, location, trace)
        if ideal is None:
            why = reason
            continue
        calls.append(
            Call(
                operation=collective.operation,
                number=collective.index,
                group=collective.group,
                message_bytes=message,
                took_ns=collective.core_ns,
                waited_ns=max(collective.wait_ns(rank) for rank in collective.sides),
                algorithm=algorithm,
                protocol=protocol,
                rank=collective.last,
                trace=members[collective.last].trace,
                side=side,
                collective=collective,
                ideal=ideal,
            )
        )
    return (calls, "") if calls else (None, why)


def _fullest(collective: Matched) -> float:
    """Return what the fullest rank receives, relative to the mean; 1.0 if the amounts are equal or unknown."""
    received = [side.received for side in collective.sides.values()]
    known = [count for count in received if count is not None]
    if collective.operation != "all_to_all" or len(known) < len(received) or not sum(known):
        return 1.0
    return max(known) * len(known) / sum(known)


def stalled(calls: Sequence[Call], limit: float, limit_ll: float) -> Iterator[Call]:
    """Yield the calls that are limited by bytes, not latency, and take more than ``limit`` times their ideal.

    ``limit_ll``: limit with protocol LL. Calls that overlap compute are excluded. Calls within and between nodes are
    compared separately, because their latencies differ.
    """
    others: dict[tuple[int, int], Intervals] = {}
    for network in (False, True):
        held = [call for call in calls if call.ideal.network == network]
        if not held:
            continue
        smallest = min(call.message_bytes for call in held)
        latency = min(call.took_ns for call in held if call.message_bytes == smallest)
        judged = [
            replace(call, ideal_ns=latency + call.ideal.ns) for call in held if call.ideal.ns >= BY_BYTES * latency
        ]
        if not judged and all(call.message_bytes == smallest for call in held):
            # with a single size the latency is unknown, so only the bytes count
            judged = [replace(call, ideal_ns=call.ideal.ns) for call in held]
        for call in judged:
            slow = call.took_ns > (limit_ll if call.protocol == "LL" else limit) * call.ideal_ns
            if slow and not _has_overlap(call, others):
                yield call


def _has_overlap(call: Call, others: dict[tuple[int, int], Intervals]) -> bool:
    """Whether compute, or communication on another stream, that overlaps the call may explain its time.

    ``others``: cache of the overlapping work per stream of a trace.
    """
    side, key = call.side, (id(call.trace), call.side.lane)
    if key not in others:
        others[key] = merge(call.trace.fact(compute_intervals), _others(call))
    overlapping = others[key]
    return int(covered(overlapping, [side.start_ns], [side.end_ns])[0]) >= CONTENTION_SHARE * side.duration_ns


def _others(call: Call) -> Intervals:
    """Return when the call's rank communicated on other streams."""
    results = [
        other for other in call.trace.fact(locals_of) if other.kernel != MISSING and other.lane != call.side.lane
    ]
    return union([other.start_ns for other in results], [other.end_ns for other in results])


def _ideal(
    operation: str, algorithm: str | None, message: int, location: Placement | None, trace: Trace
) -> tuple[Ideal | None, str]:
    """Return the ideal, or None and the reason."""
    link, topology = link_of(trace), trace.topology
    if location is None:
        return None, UNEVEN
    if location.nodes == 1:
        result = None if link is None else within(operation, algorithm, message, location.ranks, link)
    elif topology is None or topology.network is None:
        return None, SPANNING
    else:
        result = across(operation, algorithm, message, location, link, topology.network)
    return (
        result,
        UNKNOWN if link is None else "nccl-tests does not measure these operations, so their ideal time is unknown",
    )


def _kind(sides: Collection[Local]) -> tuple[str | None, str | None]:
    """Return (algorithm, protocol) recorded by any of the ranks; LL if one used it."""
    algorithms = [side.algorithm for side in sides if side.algorithm]
    protocols = [side.protocol for side in sides if side.protocol]
    return next(iter(algorithms), None), "LL" if "LL" in protocols else next(iter(protocols), None)
