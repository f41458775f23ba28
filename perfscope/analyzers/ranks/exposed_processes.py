"""Exposed time of collectives on the devices of several processes: who waited for which process.

Matched are the devices, by place; a device waits for the process whose device came last. Where that is its own process,
it waited for another device of it: no other process was late, so `straggler` does not count it.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analyzers.ranks.clocks import Clocks, align
from perfscope.analyzers.ranks.exposed import Wait
from perfscope.analyzers.ranks.matching import Matched
from perfscope.analyzers.ranks.processes import ProcessSet
from perfscope.model.trace import MISSING

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
