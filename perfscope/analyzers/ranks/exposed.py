"""Exposed time of collectives, taken apart: waiting for a member that came late, the transfer itself, what is unclear.

Members are ranks, or the devices of one recording. A member that came before the last one waits from its start on for
as long as its duration is above the shortest; what remains is the transfer. Both count as far as the device
computed nothing, each moment once, so the parts sum to ``exposed_communication`` exactly.

A wait that is no longer than the two members' ends differ anyway is no waiting that could be told from the transfer.
Where members of a group are missing, the shortest duration may hold waiting for one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfscope.analyzers.ranks.clocks import Clocks, align
from perfscope.analyzers.ranks.lateness import compute_intervals
from perfscope.analyzers.ranks.matching import Group, Matched
from perfscope.analyzers.ranks.processes import ProcessSet
from perfscope.analyzers.time.exposure import exposed_communication, exposed_until
from perfscope.model.intervals import Intervals, union
from perfscope.model.trace import MISSING, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What one member did in one collective."""

    group: Group
    until_ns: int
    """When the last member came, on the clock of this one."""
    told: bool
    """The wait is longer than the ends of the two members differ."""
    late: int | None
    """The member that came last; None where the one before it may have been."""
    whole: bool
    """All members are here: what is no waiting is the transfer."""


@dataclass(slots=True, kw_only=True)
class Share:
    """Exposed time of a member in the collectives of one group; ``exposed_ns`` is the sum of its parts."""

    member: int
    group: Group | None
    """None: collectives that were not matched."""
    collectives: int = 0
    waiting_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By the member that was waited for; itself, where it is a process with several devices."""
    together_ns: int = 0
    """Waiting for several that came last together, as far as clocks tell."""
    core_ns: int = 0
    """The transfer itself."""
    unclear_ns: int = 0
    """Waiting or transfer: below what clocks agree to, or members are missing."""
    unmatched_ns: int = 0
    """Of collectives that no other member shows."""

    @property
    def late_ns(self) -> int:
        """Waiting for other members, which are known."""
        return sum(waited for late, waited in self.waiting_ns.items() if late != self.member)

    @property
    def own_ns(self) -> int:
        """Waiting for another device of the same process, which came last of all."""
        return self.waiting_ns.get(self.member, 0)

    @property
    def exposed_ns(self) -> int:
        """All of it."""
        return self.late_ns + self.own_ns + self.together_ns + self.core_ns + self.unclear_ns + self.unmatched_ns

    def add(self, other: Share) -> None:
        """Take in another one."""
        self.collectives += other.collectives
        for late, waited in other.waiting_ns.items():
            self.waiting_ns[late] += waited
        self.together_ns += other.together_ns
        self.core_ns += other.core_ns
        self.unclear_ns += other.unclear_ns
        self.unmatched_ns += other.unmatched_ns


def waits_of(matched: Iterable[Matched], clocks: Clocks, *, all_here: bool) -> dict[int, dict[int, Wait]]:
    """Member -> row of ``kernels`` -> what it did there. ``all_here``: no member of the job is missing."""
    found: dict[int, dict[int, Wait]] = defaultdict(dict)
    for one in matched:
        doubt = {member: clocks.uncertainty_ns.get(member, 0) for member in one.sides}
        (_, last), (lateness, other) = sorted((one.wait_ns(member), member) for member in one.sides)[:2]
        late = last if lateness > doubt[last] + doubt[other] else None
        whole = one.complete and (one.named or all_here)
        for member, side in one.sides.items():
            if side.kernel == MISSING:
                continue
            waited = one.wait_ns(member)
            found[member][side.kernel] = Wait(
                group=one.group,
                until_ns=side.start_ns + waited,
                told=waited > doubt[member] + doubt[last],
                late=late,
                whole=whole,
            )
    return found


def shares_of(
    trace: Trace, member: int, device: int, rows: Sequence[int], waits: Mapping[int, Wait]
) -> tuple[Share, ...]:
    """The exposed time of ``rows`` of ``kernels`` (communication on ``device``) by group, most of it first."""
    exposed = trace.fact(exposed_communication)
    until = trace.rows["kernels"]["start_ns"].astype(np.int64)
    for kernel, one in waits.items():
        until[kernel] = one.until_ns
    computing = _computing(trace, device)
    waited = None if computing is None else exposed_until(trace, until, device, computing)
    found: dict[Group | None, Share] = {}
    for row in rows:
        wait = waits.get(row) if waited is not None else None
        group = None if wait is None else wait.group
        share = found.setdefault(group, Share(member=member, group=group))
        share.collectives += 1
        if wait is None or waited is None:
            share.unmatched_ns += int(exposed[row])
            continue
        before = int(waited[row])
        if not wait.told:
            share.unclear_ns += before
        elif wait.late is None:
            share.together_ns += before
        else:
            share.waiting_ns[wait.late] += before
        if wait.whole:
            share.core_ns += int(exposed[row]) - before
        else:
            share.unclear_ns += int(exposed[row]) - before
    return tuple(sorted(found.values(), key=lambda one: -one.exposed_ns))


def summed(shares: Sequence[Share]) -> Share:
    """All groups of a member together; there is at least one."""
    total = Share(member=shares[0].member, group=None)
    for share in shares:
        total.add(share)
    return total


def _computing(trace: Trace, device: int) -> Intervals | None:
    """When the device computed; None where rows to tell several devices of a rank apart are not kept."""
    if len(trace.rows["devices"]) == 1:
        return trace.fact(compute_intervals)
    if not len(trace.rows["hlo_ops"]):
        return None
    kernels = trace.rows["kernels"]
    chosen = (kernels["device"] == device) & ~kernels["communication"]
    return union(kernels["start_ns"][chosen], kernels["end_ns"][chosen])


# Exposed time of collectives on the devices of several processes: who waited for which process.
#
# Matched are the devices, by place; a device waits for the process whose device came last. Where that is its own
# process,
# it waited for another device of it: no other process was late, so `straggler` does not count it.


Device = tuple[int, int]
"""Rank, row of the table ``devices`` of its trace."""


def device_clocks(found: ProcessSet) -> Clocks:
    """How far the ends of collectives on the devices agree, by place."""
    return align(found.devices.collectives, found.devices.devices)


def waits_of_processes(found: ProcessSet, clocks: Clocks) -> Mapping[Device, Mapping[int, Wait]]:
    """Device -> row of ``kernels`` of its trace -> what it did there; the late member is a rank."""
    traces = {member.rank: member.trace for member in found.ranks.job.members}
    waits: dict[Device, dict[int, Wait]] = {}
    for one in found.devices.collectives:
        last = min(sorted(one.sides), key=one.wait_ns)
        late = _late(one, last, found.rank_at, clocks)
        for place, side in one.sides.items():
            if side.kernel == MISSING:
                continue
            rank, waited = found.rank_at[place], one.wait_ns(place)
            device = int(traces[rank].rows["kernels"]["device"][side.kernel])
            doubt = clocks.uncertainty_ns.get(place, 0) + clocks.uncertainty_ns.get(last, 0)
            waits.setdefault((rank, device), {})[side.kernel] = Wait(
                group=one.group,
                until_ns=side.start_ns + waited,
                told=waited > doubt,
                late=late,
                whole=one.complete,
            )
    return waits


def _late(one: Matched, last: int, rank_at: Mapping[int, int], clocks: Clocks) -> int | None:
    """The process of the device that came ``last``; None where one of another process may have come as late."""
    others = [place for place in one.sides if rank_at[place] != rank_at[last]]
    if not others:
        return rank_at[last]
    nearest = min(others, key=one.wait_ns)
    doubt = clocks.uncertainty_ns.get(last, 0) + clocks.uncertainty_ns.get(nearest, 0)
    return rank_at[last] if one.wait_ns(nearest) > doubt else None
