"""Ranks, matched collectives, groups and clocks of the jobs in a set of traces, computed once for rules and reports."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from perfscope.analyzers.devices import Device, find_device
from perfscope.analyzers.ranks.job import MIXED, Job, has_ranks, jobs_of, over
from perfscope.analyzers.ranks.matching import NO_PAIRS, Clocks, Group, Matched, Matching, Pairing, align, match, pair
from perfscope.analyzers.time import exposed_communication
from perfscope.model.collectives import POINT_TO_POINT, bus_factor
from perfscope.model.finding import AbstainError, Scope
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns

# Process groups of a job and the likely mesh axis of each: data, tensor, pipeline or expert parallel.
# The axis is an estimate with a reason, from the program's name for the group, its operations and the distance between
# its members. In the usual order of ranks (Megatron, DeviceMesh), tensor parallelism is innermost, so its members are
# neighbours, and data parallelism is further out.


_NAMES = {
    "DP": re.compile(r"(?:^|[^a-z])(?:dp|ddp|fsdp|hsdp)(?:[^a-z]|$)|data_?parallel|replicate|shard", re.IGNORECASE),
    "TP": re.compile(r"(?:^|[^a-z])tp(?:[^a-z]|$)|tensor_(?:model_)?(?:and_\w+_)?parallel", re.IGNORECASE),
    "PP": re.compile(r"(?:^|[^a-z])pp(?:[^a-z]|$)|pipeline", re.IGNORECASE),
    "EP": re.compile(r"(?:^|[^a-z])ep(?:[^a-z]|$)|expert", re.IGNORECASE),
}
"""Patterns of an axis in the names of DeviceMesh (``mesh_dp``) and Megatron (``TENSOR_MODEL_PARALLEL_GROUP``)."""


class RankGroup(Struct, frozen=True, kw_only=True):
    """A set of ranks that communicate."""

    ranks: Group
    """Members."""
    recorded: bool
    """Whether the profiler recorded the members; otherwise they were inferred from streams."""
    description: str | None
    """The program's description of the group, if recorded."""
    stride: int | None
    """Distance between neighbours, if constant."""
    operations: dict[str, int]
    """Collectives by operation, over all recorded ranks."""
    axis: str | None
    """``DP``, ``TP``, ``PP``, ``EP``; None without an indication."""
    why: str
    """Reason for the axis."""


def groups_of(job: Job, matched: Sequence[Matched]) -> tuple[RankGroup, ...]:
    """Return the groups of a job by their ranks."""
    operations: dict[Group, Counter[str]] = defaultdict(Counter)
    tensors: dict[Group, Counter[str]] = defaultdict(Counter)
    recorded: dict[Group, bool] = {}
    called: dict[Group, dict[str, None]] = defaultdict(dict)
    for collective in matched:
        operations[collective.group][collective.operation] += 1
        recorded[collective.group] = collective.named
        for side in collective.sides.values():
            if side.dims is not None:
                tensors[collective.group]["flat" if side.dims == 1 else "shaped"] += 1
    for member in job.members:
        for local in member.collectives:
            if local.ranks is not None and local.description is not None:
                called[local.ranks].setdefault(local.description)
            if local.ranks is not None and local.operation in POINT_TO_POINT:
                operations[local.ranks][local.operation] += 1
                recorded[local.ranks] = True
    return tuple(
        _group(ranks, operations[ranks], tensors[ranks], job, tuple(called[ranks]), recorded=recorded[ranks])
        for ranks in sorted(operations)
    )


def _group(
    ranks: Group, operations: Counter[str], tensors: Counter[str], job: Job, called: Sequence[str], *, recorded: bool
) -> RankGroup:
    distances = {after - before for before, after in pairwise(ranks)}
    stride = distances.pop() if len(distances) == 1 else None
    world = len(ranks) == (job.world_size or len(job.members))
    axis, why = named_axis(called) or _axis(operations, tensors, stride, world=world)
    return RankGroup(
        ranks=ranks,
        recorded=recorded,
        description=", ".join(called) or None,
        stride=stride,
        operations=dict(operations.most_common()),
        axis=axis,
        why=why,
    )


def named_axis(called: Sequence[str]) -> tuple[str, str] | None:
    """Return the axis in the program's own names; None if they match several axes (``tp_dp``) or none."""
    results = {axis for name in called for axis, words in _NAMES.items() if words.search(name)}
    return (results.pop(), f"the program calls it {', '.join(called)}") if len(results) == 1 else None


def _axis(
    operations: Counter[str], tensors: Counter[str], stride: int | None, *, world: bool
) -> tuple[str | None, str]:
    """Return the axis by the strongest indication: only sends, then all-to-all, then the reduced tensors."""
    total = operations.total()
    if sum(operations[name] for name in POINT_TO_POINT) * 2 > total:
        return "PP", "most of its traffic is between two ranks"
    if operations["all_to_all"] * 2 > total:
        return "EP", "most of it is all-to-all"
    reduces = operations["all_reduce"] + operations["reduce_scatter"] + operations["all_gather"]
    if not reduces:
        return None, "no collective indicates it"
    if tensors["shaped"] * 2 > tensors.total() > 0:
        return "TP", "it reduces tensors of several dimensions (activations), not flat buckets"
    if tensors["flat"] * 2 > tensors.total() > 0:
        return "DP", "it reduces flat buckets (gradients, parameters)"
    if world:
        return "DP", "it spans the world, and shapes are not recorded"
    if stride is not None and stride > 1:
        return "DP", f"its members are {stride} ranks apart, and shapes are not recorded"
    return None, "neighbours that reduce: tensor or data parallel, shapes are not recorded"


MATCHED = "collectives that several ranks show"

NOTED_OFFSET_NS = 10**6
"""Smallest clock offset worth a note: a time service keeps hosts within about a millisecond."""


class RankSet(Struct, frozen=True, kw_only=True):
    """One job: its ranks, their matched collectives, groups and clocks."""

    job: Job
    matching: Matching
    clocks: Clocks
    groups: tuple[RankGroup, ...]
    pairing: Pairing = NO_PAIRS
    """Its paired sends and receives."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the ranks for the reader, one sentence each."""
        return (*self.job.notes, *self.matching.notes, *self.pairing.notes, *_of_clocks(self.clocks))


def rank_sets(traces: Sequence[Trace]) -> tuple[RankSet, ...]:
    """Return the jobs that the traces belong to, largest first. Cached."""
    return over(traces, _rank_sets) if traces else ()


def _rank_sets(traces: tuple[Trace, ...]) -> tuple[RankSet, ...]:
    result = []
    for job in jobs_of(traces):
        matching = match(job)
        clocks = align(matching.matched, job.ranks)
        groups, pairing = groups_of(job, matching.matched), pair(job, clocks)
        result.append(RankSet(job=job, matching=matching, clocks=clocks, groups=groups, pairing=pairing))
    return tuple(result)


def nothing_alone(trace: Trace) -> Scope:
    """``examined`` of a rule that compares the matched collectives of ranks: empty for a single rank."""
    return Scope(0, MATCHED)


def matched_records(traces: Sequence[Trace]) -> Scope:
    """``compared`` of such a rule: the number of matched collectives."""
    return Scope(sum(len(ranks.matching.matched) for ranks in comparable(traces)), MATCHED)


def comparable(traces: Sequence[Trace]) -> tuple[RankSet, ...]:
    """Return the jobs whose ranks can be compared; empty if no trace has a rank's collectives.

    ``AbstainError`` if there are collectives but nothing to compare with: a single rank, or no matches.
    """
    if not any(map(has_ranks, traces)):
        return ()
    sets = rank_sets(traces)
    several = [rank_set for rank_set in sets if len(rank_set.job.members) > 1]
    if not several:
        known_ranks = bool(sets)
        raise AbstainError(
            "a single rank does not show which rank waits for which: record all ranks"
            if known_ranks or len(traces) == 1
            else "the traces lack their ranks"
        )
    usable = [rank_set for rank_set in several if rank_set.job.groups_agree and rank_set.matching.matched]
    if not usable:
        raise AbstainError(_why_not(several[0]))
    return tuple(usable)


def _why_not(ranks: RankSet) -> str:
    """Return why the ranks cannot be compared."""
    if not ranks.job.groups_agree:
        return MIXED
    nothing = "no collective of one rank matches one of another rank"
    return f"{nothing}: {ranks.matching.notes[0]}" if ranks.matching.notes else nothing


def _of_clocks(clocks: Clocks) -> tuple[str, ...]:
    notes = []
    if clocks.largest_offset_ns >= NOTED_OFFSET_NS:
        notes.append(
            f"clocks of the ranks are up to {format_ns(clocks.largest_offset_ns)} apart, by the ends of their "
            f"collectives; after aligning, they agree to {format_ns(clocks.worst_ns)}"
        )
    if clocks.unreached:
        notes.append(f"clocks of {len(clocks.unreached):,} ranks are unknown, because they share no collective")
    return tuple(notes)


# The collectives of a job by kind: size, algorithm, waits of the ranks, time of the collective itself, bandwidth.
# For every matched collective and rank, duration = wait + core, exactly: the core is the shortest duration (the last
# rank to arrive does not wait), the wait is the rest. Bandwidth is based on the core, with the factors of nccl-tests:
# algorithm bandwidth = message / core, bus bandwidth = that times the factor of the operation.


Kind = tuple[str, Group, int | None, str | None, str | None, str | None]


class CollectiveKind(Struct, frozen=True, kw_only=True):
    """Matched collectives of one operation, group, size and algorithm."""

    operation: str
    group: Group
    """Members; those that take part where they are not recorded."""
    axis: str | None
    """The likely mesh axis of its group."""
    message_bytes: int | None
    """Bytes of one rank's message in the definition of nccl-tests; None if sizes were not recorded."""
    dtype: str | None
    algorithm: str | None
    """NCCL's algorithm, from the kernel's name: RING, TREE, NVLS ..."""
    protocol: str | None
    """LL, LL128 or SIMPLE."""
    count: int
    """Collectives."""
    core_ns: int
    """Sum over the collectives, ns."""
    median_core_ns: int
    wait_ns: Mapping[int, int]
    """Rank -> summed wait, ns."""
    duration_ns: Mapping[int, int]
    """Rank -> summed duration, ns: its waits, and the cores of the collectives that it took part in."""
    exposed_ns: Mapping[int, int]
    """Rank -> part of ``duration_ns`` in which its device computed nothing. Empty for collectives on the host."""
    algorithm_bandwidth: float | None
    """Bytes/s at the median core."""
    bus_bandwidth: float | None
    """Bytes/s, with the factor of the operation."""
    caveats: tuple[str, ...]
    """Caveats for comparing the bandwidth with a link's peak."""

    @property
    def mean_wait_ns(self) -> int:
        """Mean wait of a rank, ns."""
        return sum(self.wait_ns.values()) // max(1, len(self.wait_ns))


class RankShare(Struct, frozen=True, kw_only=True):
    """Time of a rank in collectives."""

    rank: int
    wait_ns: int
    """How long it waited for the last rank, ns."""
    duration_ns: int
    exposed_ns: int | None
    """Part of the duration while nothing else ran on its device, ns; null: not known."""


class RankTotal(RankShare, frozen=True, kw_only=True):
    """Time of a rank in all matched collectives; ``wait_ns + core_ns = duration_ns``."""

    collectives: int
    core_ns: int
    last: int
    """Number of collectives at which it arrived last."""


class CollectiveTable(Struct, frozen=True, kw_only=True):
    """All matched collectives of a job, longest kinds first."""

    kinds: tuple[CollectiveKind, ...]
    ranks: tuple[RankTotal, ...]
    matched: tuple[Matched, ...]
    """All of them, by their first start."""


def table_of(ranks: RankSet) -> CollectiveTable:
    """Return the table of a job's matched collectives."""
    traces = {member.rank: member.trace for member in ranks.job.members}
    kinds: dict[Kind, list[Matched]] = defaultdict(list)
    for collective in ranks.matching.matched:
        side = next(
            (side for side in collective.sides.values() if side.algorithm), next(iter(collective.sides.values()))
        )
        size = collective.message_bytes
        if collective.operation == "all_gather" and not _members_known(collective, ranks):
            size = None  # this size is the sum over all members
        kinds[collective.operation, collective.group, size, side.dtype, side.algorithm, side.protocol].append(
            collective
        )
    axes = {group.ranks: group for group in ranks.groups}
    collective_kinds = [
        kind_of(
            kind,
            matched,
            axes.get(kind[1]),
            traces,
            known=all(_members_known(collective, ranks) for collective in matched),
        )
        for kind, matched in kinds.items()
    ]
    collective_kinds.sort(key=lambda kind: -sum(kind.duration_ns.values()))
    matched = ranks.matching.matched
    totals = totals_of(matched, sorted(traces), collective_kinds)
    return CollectiveTable(kinds=tuple(collective_kinds), ranks=totals, matched=matched)


def kind_of(
    kind: Kind, matched: Sequence[Matched], group: RankGroup | None, traces: Mapping[int, Trace], *, known: bool
) -> CollectiveKind:
    """Return one row of the table; ``matched``: all of that kind, at least one.

    ``known``: whether the members are known.
    """
    operation, members, size, dtype, algorithm, protocol = kind
    waits, durations, exposed = (dict.fromkeys(sorted({rank for collective in matched for rank in collective.sides}), 0)
                                 for _ in range(3))  # fmt: skip
    for collective in matched:
        for rank, side in collective.sides.items():
            waits[rank] += collective.wait_ns(rank)
            durations[rank] += side.duration_ns
            if side.kernel != MISSING:
                exposed[rank] += int(traces[rank].fact(exposed_communication)[side.kernel])
    core = int(np.median([collective.core_ns for collective in matched]))
    factor = bus_factor(operation, len(members)) if known else None
    bandwidth = size / core * 1e9 if size and core else None
    on_device = all(side.kernel != MISSING for collective in matched for side in collective.sides.values())
    return CollectiveKind(
        operation=operation,
        group=members,
        axis=None if group is None else group.axis,
        message_bytes=size,
        dtype=dtype,
        algorithm=algorithm,
        protocol=protocol,
        count=len(matched),
        core_ns=sum(collective.core_ns for collective in matched),
        median_core_ns=core,
        wait_ns=waits,
        duration_ns=durations,
        exposed_ns=exposed if on_device else {},
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=None if bandwidth is None or factor is None else bandwidth * factor,
        caveats=tuple(_caveats(matched, algorithm, traces, known=known, on_device=on_device)),
    )


def _members_known(collective: Matched, ranks: RankSet) -> bool:
    """Whether the members are recorded, or follow because all ranks of the world were recorded."""
    return collective.named or not ranks.job.missing


def _caveats(
    matched: Sequence[Matched], algorithm: str | None, traces: Mapping[int, Trace], *, known: bool, on_device: bool
) -> list[str]:
    result = []
    if not known:
        result.append("the group's members are not recorded and ranks are missing, so the bus bandwidth is unknown")
    if not all(collective.complete for collective in matched):
        result.append(
            "members of the group are missing: the core may include waiting, so the bandwidth is a lower bound"
        )
    if algorithm is not None and algorithm.startswith("NVLS"):
        result.append(
            "NVLS reduces in the switch: links carry (1 + 1/n) of the message, so bus bandwidth may exceed their peak"
        )
    if on_device and any(device is not None and device.link is None for device in map(device_of, traces.values())):
        result.append("only PCIe is known for this device; its topology determines the reachable bandwidth")
    if matched[0].operation == "all_to_all" and len({side.elements for side in matched[0].sides.values()}) > 1:
        result.append("sizes differ between ranks; the largest is used")
    return result


def device_of(trace: Trace) -> Device | None:
    """Return the device of a rank in the hardware tables; None if it is not recorded or not in them."""
    names = trace.rows["devices"]["name"]
    return find_device(trace.text(int(names[0]))) if len(names) else None


def totals_of(
    matched: Sequence[Matched], ranks: Sequence[int], kinds: Sequence[CollectiveKind]
) -> tuple[RankTotal, ...]:
    """Return the time of each of ``ranks`` in all matched collectives, which are those of ``kinds``."""
    mine: dict[int, list[Matched]] = {rank: [] for rank in ranks}
    exposed: Counter[int] = Counter()
    for collective in matched:
        for rank in collective.sides:
            mine[rank].append(collective)
    for kind in kinds:
        exposed.update(kind.exposed_ns)
    return tuple(
        RankTotal(
            rank=rank,
            collectives=len(found),
            wait_ns=sum(collective.wait_ns(rank) for collective in found),
            core_ns=sum(collective.core_ns for collective in found),
            duration_ns=sum(collective.sides[rank].duration_ns for collective in found),
            exposed_ns=exposed[rank] if all(collective.sides[rank].kernel != MISSING for collective in found) else None,
            last=sum(collective.last == rank for collective in found),
        )
        for rank, found in mine.items()
    )
