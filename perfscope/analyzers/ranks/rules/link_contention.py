"""Two collectives run at the same time on the same links, and each takes longer than alone.

Example:
    Before::

        group = dist.new_group(ranks)

    After::

        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        group = dist.new_group(ranks, pg_options=options)       # of the collectives that the step waits for

Why it costs:
    Collectives of different process groups run on separate streams. If data parallel gradients are reduced during the
    next layer's tensor or expert parallel collective, both share the links (and NCCL's channels, which take SMs).
    Sharing alone does not make both together slower, but the collective that the computation waits for takes longer, in
    favour of one that no computation waits for yet.

How it is found:
    From traces of all ranks of a group. Among collectives of one operation, group, size, algorithm and protocol, those
    that overlapped another communication of their device for half of their time or more are compared with those that
    overlapped none. Collectives with and without computation at the same time are compared separately, since
    computation slows them too. The compared time is the shortest duration over the ranks, which excludes waiting for a
    late rank. It is contention if the median with overlap is longer by a fifth or more, and chance alone makes such a
    difference in less than 1% of cases (rank-sum test, corrected for the number of kinds), with at least five
    collectives of each. The cost is measured, and an upper bound: the time of each collective beyond the median of
    those alone, as far as nothing computes meanwhile. The rule abstains if no two communications overlapped, or if no
    kind ran both with overlap and alone.

Fix:
    Give priority to the collective that the computation waits for: communicators of different priority
    (`ProcessGroupNCCL.Options(is_high_priority_stream=True)` for tensor or expert parallel groups), fewer channels for
    the other (`options.config.max_ctas = 8`), or start the other when the links are free (`no_sync()` up to the last
    microbatch, `set_requires_gradient_sync(False)` of fully_shard, larger buckets that start later).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.ranks.job import Local, Member, locals_of, only_compared
from perfscope.analyzers.ranks.matching import Group, Matched, shorter_transfers
from perfscope.analyzers.ranks.rank_work import rank_work
from perfscope.analyzers.ranks.sets import RankSet, comparable, matched_records, nothing_alone
from perfscope.analyzers.ranks.waits import compute_intervals
from perfscope.analyzers.spans import spans_of_ranks
from perfscope.analyzers.time import exposed_communication, timed_cost
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Where
from perfscope.model.intervals import Intervals, covered, union
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_bytes, format_ns

MIN_CALLS = 5
"""Minimum number of calls of each kind. With four and four, no order is rarer than 1 %."""

CHANCE = 0.01
"""Probability of a chance difference, over all kinds of a job, below which a difference counts."""

SLOWER = 1.2
"""Ratio to the median alone from which a difference counts; smaller ones vary between recordings with few calls."""

COST_SHARE = 0.02
"""Smallest saving as a share of the steps, above the usual 1 % variation between launches."""


SHARED_SHARE = 0.5
"""Share of a collective that overlaps another one from which it counts as sharing the links; collectives with a smaller
overlap are in neither group.
"""

LITTLE, MOSTLY = 0.2, 0.8
"""Shares of a collective that overlap compute: below and above are compared separately, because compute slows it too.
"""

Kind = tuple[str, Group, int, str | None, str | None, bool]


examined = nothing_alone
compared = matched_records
check = only_compared


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield a finding for each operation and group of a job that other collectives slow down."""
    sets = comparable(traces)
    reasons = []
    for ranks in sets:
        kinds = compared_kinds(ranks)
        usable = [kind for kind in kinds if len(kind.shared) >= MIN_CALLS and len(kind.alone_ns) >= MIN_CALLS]
        if not usable:
            reasons.append(_why_not(kinds))
        whole = ranks.job.whole_ns
        for kind in usable:
            cost = sum(kind.saves_ns(shared) for shared in kind.shared)
            if kind.slower >= SLOWER and kind.chance * len(usable) < CHANCE and cost >= COST_SHARE * whole > 0:
                yield _finding(ranks, kind, cost, whole)
    if sets and len(reasons) == len(sets):
        raise AbstainError(reasons[0])


def _why_not(kinds: Sequence[Compared]) -> str:
    if not kinds:
        return "no collective of known size on the device whose ranks are all here"
    if not any(kind.shared for kind in kinds):
        return "no two collectives ran at the same time on one device: there is nothing to compare"
    return f"nothing to compare: no kind of collective ran {MIN_CALLS} times with another and {MIN_CALLS} times alone"


def _finding(ranks: RankSet, kind: Compared, cost: int, whole: int) -> Finding:
    slowed = sorted(kind.shared, key=lambda shared: -kind.saves_ns(shared))
    worst = slowed[0].collective
    trace = ranks.job.traces[worst.last]
    others = sorted({shared.other for shared in slowed})
    collectives = [shared.collective for shared in slowed]
    median = float(np.median([shared.collective.core_ns for shared in slowed]))
    return Finding(
        subject=f"{worst.operation} with another",
        title=f"{len(slowed):,} {worst.operation} are {kind.slower:.1f} times slower while another runs",
        detail=f"With {format_bytes(worst.message_bytes or 0)} and {worst.size} ranks they take {format_ns(median)} "
        f"during {' and '.join(others)}, and {format_ns(kind.median_alone_ns)} alone (medians, {len(kind.alone_ns):,} "
        "alone).",
        **timed_cost(trace, cost, whole),
        where=Where(op=worst.operation),
        ranks=worst.group,
        evidence=tuple(_row(shared, kind) for shared in slowed[:MOST_ROWS]),
        spans=spans_of_ranks(
            (collective.last, collective.sides[collective.last].start_ns, collective.sides[collective.last].end_ns)
            for collective in collectives
        ),
        advice=trace.fact(rank_work).situation.for_device(
            "Let the one that is waited for go first{priority}.{channels} Or start the other later (no_sync() up to "
            "the last microbatch, set_requires_gradient_sync(False) of fully_shard)."
        ),
        removes=shorter_transfers(
            (collective, min(1.0, kind.median_alone_ns / max(1, collective.core_ns))) for collective in collectives
        ),
    )


def _row(shared: Shared, kind: Compared) -> dict[str, Cell]:
    collective = shared.collective
    return {
        "operation": collective.operation,
        "number": collective.index,
        "group_ranks": collective.size,
        "message_bytes": collective.message_bytes,
        "core_ns": collective.core_ns,
        "alone_median_ns": round(kind.median_alone_ns),
        "beside": shared.other,
        "beside_share": round(shared.share, 3),
        "exposed_ns": shared.exposed_ns,
        "saves_ns": kind.saves_ns(shared),
        "chance": float(f"{kind.chance:.2g}"),
    }


class Shared(Struct, frozen=True, kw_only=True):
    """A collective that overlapped another one."""

    collective: Matched
    share: float
    """Share of its time that overlapped."""
    other: str
    """Operation and ranks of the collective that it overlapped most."""
    exposed_ns: int


class Compared(Struct, frozen=True, kw_only=True):
    """Collectives of one operation, group, size, algorithm and protocol, with similar overlap of compute."""

    shared: tuple[Shared, ...]
    alone_ns: tuple[int, ...]
    """Cores of the collectives that ran alone, ns."""

    @property
    def median_alone_ns(self) -> float:
        """Median core of the collectives that ran alone, ns."""
        return float(np.median(self.alone_ns))

    @property
    def slower(self) -> float:
        """Ratio of the median shared core to the median core alone."""
        return float(np.median([shared.collective.core_ns for shared in self.shared])) / max(1.0, self.median_alone_ns)

    @property
    def chance(self) -> float:
        """Probability that the shared collectives are this much longer by chance."""
        return rank_sum([shared.collective.core_ns for shared in self.shared], self.alone_ns)

    def saves_ns(self, shared: Shared) -> int:
        """Upper bound of the saving: its excess over the median alone, as far as it is exposed."""
        return int(min(max(0.0, shared.collective.core_ns - self.median_alone_ns), shared.exposed_ns))


def compared_kinds(ranks: RankSet) -> tuple[Compared, ...]:
    """Return the kinds of collectives of a job; some may have none that ran alone, or none that overlapped."""
    members = {member.rank: member for member in ranks.job.members}
    others: dict[tuple[int, int], Intervals] = {}
    shared: dict[Kind, list[Shared]] = defaultdict(list)
    alone: dict[Kind, list[int]] = defaultdict(list)
    for collective in ranks.matching.matched:
        side, size = collective.sides[collective.last], collective.message_bytes
        if side.kernel == MISSING or not size or not collective.complete or not side.duration_ns:
            continue
        member = members[collective.last]
        computing = member.trace.fact(compute_intervals)
        computing_share = int(covered(computing, [side.start_ns], [side.end_ns])[0]) / side.duration_ns
        if LITTLE <= computing_share <= MOSTLY:
            continue
        if (collective.last, side.lane) not in others:
            others[collective.last, side.lane] = _other_lanes(member, side.lane)
        share = int(covered(others[collective.last, side.lane], [side.start_ns], [side.end_ns])[0]) / side.duration_ns
        kind = collective.operation, collective.group, size, side.algorithm, side.protocol, computing_share > MOSTLY
        if share == 0:
            alone[kind].append(collective.core_ns)
        elif share >= SHARED_SHARE:
            exposed = int(member.trace.fact(exposed_communication)[side.kernel])
            shared[kind].append(
                Shared(collective=collective, share=share, other=_largest_overlap(side, member), exposed_ns=exposed)
            )
    return tuple(Compared(shared=tuple(shared[kind]), alone_ns=tuple(alone[kind])) for kind in {**shared, **alone})


def rank_sum(longer: Sequence[float], than: Sequence[float]) -> float:
    """Return the one-sided p of the Wilcoxon-Mann-Whitney test, normal approximation corrected for ties and continuity.

    Mann and Whitney 1947; ``1.0`` if a sample is empty or all values are equal.
    """
    first, second = np.asarray(longer, float), np.asarray(than, float)
    both = np.concatenate((first, second))
    total = len(both)
    if not len(first) or not len(second):
        return 1.0
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    above = ranks[: len(first)].sum() - len(first) * (len(first) + 1) / 2
    ties = float((counts**3 - counts).sum()) / max(1, total * (total - 1))
    variance = len(first) * len(second) / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    z = (above - len(first) * len(second) / 2 - 0.5) / math.sqrt(variance)
    return 0.5 * math.erfc(z / math.sqrt(2))


def _longest_ns(trace: Trace) -> int:
    return max((local.duration_ns for local in trace.fact(locals_of)), default=0)


def _other_lanes(member: Member, lane: int) -> Intervals:
    """Return when the rank's other streams communicated."""
    results = [
        collective for collective in member.collectives if collective.kernel != MISSING and collective.lane != lane
    ]
    return union([local.start_ns for local in results], [local.end_ns for local in results])


def _largest_overlap(side: Local, member: Member) -> str:
    """Return the collective on another stream with the largest overlap.

    None begins earlier than the longest one takes.
    """
    longest = member.trace.fact(_longest_ns)
    first = bisect_left(member.collectives, side.start_ns - longest, key=lambda other: other.start_ns)
    last = bisect_left(member.collectives, side.end_ns, key=lambda other: other.start_ns)
    others = [one for one in member.collectives[first:last] if one.kernel != MISSING and one.lane != side.lane]
    other = max(others, key=lambda one: min(one.end_ns, side.end_ns) - max(one.start_ns, side.start_ns))
    return other.operation if other.size is None else f"{other.operation} of {other.size} ranks"
