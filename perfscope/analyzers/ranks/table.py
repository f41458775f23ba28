"""The collectives of a job by kind: size, algorithm, what ranks waited, what the collective itself took, bandwidth.

For every matched collective and rank, duration = wait + core, exactly: the core is the shortest duration (the last
rank to arrive waits for nobody), the wait is the rest. Bandwidth is of the core, with the factors of nccl-tests:
algorithm bandwidth = message / core, bus bandwidth = that times the factor of the operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.devices import Device, find_device
from perfscope.analyzers.ranks.groups import RankGroup
from perfscope.analyzers.ranks.matching import Group, Matched
from perfscope.analyzers.ranks.sets import RankSet
from perfscope.analyzers.time.exposure import exposed_communication
from perfscope.model.collectives import bus_factor
from perfscope.model.trace import MISSING, Trace

Kind = tuple[str, Group, int | None, str | None, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKind:
    """Matched collectives of one operation, group, size and algorithm."""

    operation: str
    group: Group
    axis: str | None
    """The mesh axis its group looks like; a guess."""
    message_bytes: int | None
    """Of one rank, as nccl-tests counts it; None where sizes were not recorded."""
    dtype: str | None
    algorithm: str | None
    protocol: str | None
    count: int
    core_ns: int
    """Summed over the collectives."""
    median_core_ns: int
    wait_ns: Mapping[int, int]
    """By rank, summed."""
    duration_ns: Mapping[int, int]
    """By rank, summed: its waits, and the cores of the collectives that it took part in."""
    exposed_ns: Mapping[int, int]
    """By rank: the part of ``duration_ns`` behind which its device computed nothing. Empty for those on the host."""
    algorithm_bandwidth: float | None
    """Bytes/s of the median core."""
    bus_bandwidth: float | None
    """Bytes/s, by the factor of the operation."""
    caveats: tuple[str, ...]
    """What to know before the bandwidth is held against a link's peak."""

    @property
    def mean_wait_ns(self) -> int:
        """Of a rank."""
        return sum(self.wait_ns.values()) // max(1, len(self.wait_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotal:
    """What a rank spent in matched collectives; ``wait_ns + core_ns = duration_ns``."""

    rank: int
    collectives: int
    wait_ns: int
    core_ns: int
    duration_ns: int
    exposed_ns: int | None
    """None where the collectives ran on the host."""
    last: int
    """Collectives at which it arrived last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """All matched collectives of a job, the longest kinds first."""

    kinds: tuple[CollectiveKind, ...]
    ranks: tuple[RankTotal, ...]


def table_of(ranks: RankSet) -> CollectiveTable:
    """The table of a job's matched collectives."""
    traces = {member.rank: member.trace for member in ranks.job.members}
    kinds: dict[Kind, list[Matched]] = defaultdict(list)
    for one in ranks.matching.matched:
        side = next((side for side in one.sides.values() if side.algorithm), next(iter(one.sides.values())))
        size = one.message_bytes
        if one.operation == "all_gather" and not _members_known(one, ranks):
            size = None  # it counts what all members send
        kinds[one.operation, one.group, size, side.dtype, side.algorithm, side.protocol].append(one)
    axes = {group.ranks: group for group in ranks.groups}
    found = [
        kind_of(kind, matched, axes.get(kind[1]), traces, known=all(_members_known(one, ranks) for one in matched))
        for kind, matched in kinds.items()
    ]
    found.sort(key=lambda one: -sum(one.duration_ns.values()))
    return CollectiveTable(kinds=tuple(found), ranks=totals_of(ranks.matching.matched, sorted(traces), found))


def kind_of(
    kind: Kind, matched: Sequence[Matched], group: RankGroup | None, traces: Mapping[int, Trace], *, known: bool
) -> CollectiveKind:
    """One row of the table; ``matched`` are all of that kind, at least one. ``known``: the group's members are."""
    operation, members, size, dtype, algorithm, protocol = kind
    waits, durations, exposed = (dict.fromkeys(sorted({rank for one in matched for rank in one.sides}), 0)
                                 for _ in range(3))  # fmt: skip
    for one in matched:
        for rank, side in one.sides.items():
            waits[rank] += one.wait_ns(rank)
            durations[rank] += side.duration_ns
            if side.kernel != MISSING:
                exposed[rank] += int(traces[rank].fact(exposed_communication)[side.kernel])
    core = int(np.median([one.core_ns for one in matched]))
    factor = bus_factor(operation, len(members)) if known else None
    bandwidth = size / core * 1e9 if size and core else None
    on_device = all(side.kernel != MISSING for one in matched for side in one.sides.values())
    return CollectiveKind(
        operation=operation,
        group=members,
        axis=None if group is None else group.axis,
        message_bytes=size,
        dtype=dtype,
        algorithm=algorithm,
        protocol=protocol,
        count=len(matched),
        core_ns=sum(one.core_ns for one in matched),
        median_core_ns=core,
        wait_ns=waits,
        duration_ns=durations,
        exposed_ns=exposed if on_device else {},
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=None if bandwidth is None or factor is None else bandwidth * factor,
        caveats=tuple(_caveats(matched, algorithm, traces, known=known, on_device=on_device)),
    )


def _members_known(one: Matched, ranks: RankSet) -> bool:
    """Whether the members are recorded, or all ranks of the world are here to be seen taking part."""
    return one.named or not ranks.job.missing


def _caveats(
    matched: Sequence[Matched], algorithm: str | None, traces: Mapping[int, Trace], *, known: bool, on_device: bool
) -> list[str]:
    found = []
    if not known:
        found.append("who is in the group is not recorded and ranks are missing: bus bandwidth is not known")
    if not all(one.complete for one in matched):
        found.append("members of the group are missing: the core may hold waiting, and its bandwidth is a lower bound")
    if algorithm is not None and algorithm.startswith("NVLS"):
        found.append(
            "NVLS reduces in the switch: links carry (1 + 1/n) of the message, so bus bandwidth may exceed their peak"
        )
    if on_device and any(device is not None and device.link is None for device in map(device_of, traces.values())):
        found.append("no links but PCIe are known of this device: topology decides what can be reached")
    if matched[0].operation == "all_to_all" and len({side.elements for side in matched[0].sides.values()}) > 1:
        found.append("sizes differ by rank: the largest is used")
    return found


def device_of(trace: Trace) -> Device | None:
    """The device of a rank in the tables of hardware; None if it is not told or not in them."""
    names = trace.rows["devices"]["name"]
    return find_device(trace.text(int(names[0]))) if len(names) else None


def totals_of(
    matched: Sequence[Matched], ranks: Sequence[int], kinds: Sequence[CollectiveKind]
) -> tuple[RankTotal, ...]:
    """What each of ``ranks`` spent in all matched collectives, which are those of ``kinds``."""
    return tuple(_total(rank, [one for one in matched if rank in one.sides], kinds) for rank in ranks)


def _total(rank: int, mine: Sequence[Matched], kinds: Sequence[CollectiveKind]) -> RankTotal:
    on_device = all(one.sides[rank].kernel != MISSING for one in mine)
    return RankTotal(
        rank=rank,
        collectives=len(mine),
        wait_ns=sum(one.wait_ns(rank) for one in mine),
        core_ns=sum(one.core_ns for one in mine),
        duration_ns=sum(one.sides[rank].duration_ns for one in mine),
        exposed_ns=sum(kind.exposed_ns.get(rank, 0) for kind in kinds) if on_device else None,
        last=sum(one.last == rank for one in mine),
    )
