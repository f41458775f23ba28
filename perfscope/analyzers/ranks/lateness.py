"""Who keeps whom waiting: for every late arrival of a rank, how late, and what it did before.

A collective's shortest side is that of the rank that came last. It was late by what the next-to-last rank waited:
had it come no later than that one, all would have gone on so much sooner, and no more. Lateness below the
uncertainty of the two ranks' ends is nobody's, nor is, for collectives on the host, what a scheduler makes of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.analyzers.facts.step_windows import whole_ns
from perfscope.analyzers.ranks.before import Before, before, compute_intervals, way
from perfscope.analyzers.ranks.local import Local
from perfscope.analyzers.ranks.matching import Matched
from perfscope.analyzers.ranks.sets import RankSet
from perfscope.model.intervals import Intervals, difference_total, union
from perfscope.model.trace import MISSING

SLICE_NS = 10 * 10**6
"""Ten milliseconds. A collective on the host begins when a thread of the rank gets a core: where cores are shared it
waits for others' slices (3 to 24 ms under Linux's schedulers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """One late arrival."""

    collective: Matched
    rank: int
    lateness_ns: int
    """Behind the next-to-last rank."""
    waited_ns: int
    """What the others waited, summed."""
    before: Before


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggling:
    """All late arrivals of one rank."""

    rank: int
    arrivals: tuple[Late, ...]
    """The latest first."""
    cost_ns: int
    """Upper bound of what coming in time would save: its lateness, and no more than some other rank idled for it.

    Waiting behind which a device computed is not in it. Of collectives on the host, what they hide is not known.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """The stragglers of a job, the costliest first."""

    stragglers: tuple[Straggling, ...]
    collectives: int
    """Matched ones, of all ranks."""
    whole_ns: int
    """What costs are a share of: the longest rank's steps, or its span."""

    @property
    def cost_ns(self) -> int:
        """Of all stragglers."""
        return sum(one.cost_ns for one in self.stragglers)


def lateness_of(ranks: RankSet) -> Lateness:
    """The late arrivals at the matched collectives of a job."""
    traces = {member.rank: member.trace for member in ranks.job.members}
    by_rank: dict[int, list[Late]] = defaultdict(list)
    previous: dict[int, Local] = {}
    for one in ranks.matching.matched:
        ways = {
            rank: found
            for rank, side in one.sides.items()
            if (found := way(traces[rank], previous.get(rank), side)) is not None
        }
        previous.update(one.sides)
        waits = sorted((one.wait_ns(rank), rank) for rank in one.sides)
        late, other = waits[1]
        rank = waits[0][1]
        least = ranks.clocks.uncertainty_ns.get(rank, 0) + ranks.clocks.uncertainty_ns.get(other, 0)
        if one.sides[rank].kernel == MISSING:
            least = max(least, SLICE_NS)
        if late <= least:
            continue
        own = ways.pop(rank, None)
        did = before(traces[rank], one.sides[rank], late, own, tuple(ways.values()))
        waited = sum(wait for wait, _ in waits)
        by_rank[rank].append(Late(collective=one, rank=rank, lateness_ns=late, waited_ns=waited, before=did))
    stragglers = [_straggling(rank, found, ranks) for rank, found in by_rank.items()]
    return Lateness(
        stragglers=tuple(sorted(stragglers, key=lambda one: (-one.cost_ns, one.rank))),
        collectives=len(ranks.matching.matched),
        whole_ns=max(whole_ns(trace) for trace in traces.values()),
    )


def _straggling(rank: int, found: list[Late], ranks: RankSet) -> Straggling:
    exposed = _exposed(found, ranks)
    cost = min(sum(late.lateness_ns for late in found), max(exposed.values(), default=0))
    arrivals = tuple(sorted(found, key=lambda late: -late.lateness_ns))
    return Straggling(rank=rank, arrivals=arrivals, cost_ns=cost)


def _exposed(found: list[Late], ranks: RankSet) -> Mapping[int, int]:
    """By other rank: ns it waited at these collectives while its device computed nothing, each moment once."""
    waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    on_device = True
    for late in found:
        for rank, side in late.collective.sides.items():
            if rank != late.rank:
                on_device &= side.kernel != MISSING
                waits[rank].append((side.start_ns, side.start_ns + late.collective.wait_ns(rank)))
    traces = {member.rank: member.trace for member in ranks.job.members}
    exposed = {}
    for rank, spans in waits.items():
        waiting: Intervals = union([start for start, _ in spans], [end for _, end in spans])
        computing = traces[rank].fact(compute_intervals)
        exposed[rank] = difference_total(waiting, computing) if on_device else waiting.total()
    return exposed
