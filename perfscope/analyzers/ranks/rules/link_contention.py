"""Two collectives run at the same time on the same links, and each takes longer than it does alone.

Why it costs:
    Collectives of different process groups run on streams of their own. Where data parallel gradients are reduced
    while the next layer's tensor or expert parallel collective is on its way, both share the links (and NCCL's
    channels, which take SMs). Sharing alone loses nothing over both; but the collective that the computation waits for
    takes longer, for the sake of one that nobody waits for yet.

How it is found:
    From traces of all ranks of a group. Collectives of one operation, group, size, algorithm and protocol are compared
    with each other: those that ran for half of their time or more beside another communication of their device, with
    those that ran beside none. Those that run beside computing and those that do not are compared apart, since
    computing slows them too. Compared is the core, the shortest duration over the ranks, so waiting for a late rank is
    not in it. It is contention if the median beside another is longer by a fifth or more, and chance alone makes
    such a difference in less than 1% of cases (rank-sum test, corrected for the number of kinds that were compared),
    with five collectives of each at least.

    The cost is measured, and an upper bound: what each takes beyond the median of those alone, as far as nothing
    computes meanwhile. Where no two communications ran side by side, or no kind did so and ran alone as well, the rule
    abstains: there is nothing to compare.

Fix:
    Let the one that is waited for go first: communicators of different priority
    (`ProcessGroupNCCL.Options(is_high_priority_stream=True)` for tensor or expert parallel groups), fewer channels for
    the other (`options.config.max_ctas = 8`), or start the other where the links are free (`no_sync()` up to the last
    microbatch, `set_requires_gradient_sync(False)` of fully_shard, larger buckets that start later).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from perfscope.analyzers.ranks.contention import Compared, Shared, compared_kinds
from perfscope.analyzers.ranks.job import only_compared
from perfscope.analyzers.ranks.sets import RankSet, comparable
from perfscope.analyzers.time import spans_of_ranks, timed_cost
from perfscope.model.finding import AbstainError, Cell, Finding, Where
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns, format_share

NEEDS = ()

MIN_CALLS = 5
"""Of each sort. With four and four no order at all is rarer than 1%."""

CHANCE = 0.01
"""Over all kinds of a job: below it a difference is not put down to chance."""

SLOWER = 1.2
"""Times the median alone. Less would be lost in how a few calls' medians vary between two recordings."""

COST_SHARE = 0.02
"""Of the steps: more than the usual 1% spread between launches."""

ROWS = 20


check = only_compared


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield a finding for each operation and group of a job that others slow down."""
    sets = comparable(traces)
    reasons = []
    for ranks in sets:
        kinds = compared_kinds(ranks)
        usable = [kind for kind in kinds if len(kind.shared) >= MIN_CALLS and len(kind.alone_ns) >= MIN_CALLS]
        if not usable:
            reasons.append(_why_not(kinds))
        whole = ranks.job.whole_ns
        for kind in usable:
            cost = sum(kind.saves_ns(one) for one in kind.shared)
            if kind.slower >= SLOWER and kind.chance * len(usable) < CHANCE and cost >= COST_SHARE * whole > 0:
                yield _finding(ranks, kind, cost, whole)
    if sets and len(reasons) == len(sets):
        raise AbstainError(reasons[0])


def _why_not(kinds: Sequence[Compared]) -> str:
    if not kinds:
        return "no collective of known size on the device whose ranks are all here"
    if not any(kind.shared for kind in kinds):
        return "no two collectives ran at the same time on one device: there is nothing to compare"
    return (
        f"no kind of collective ran both beside another and alone, {MIN_CALLS} times each: there is nothing to compare"
    )


def _finding(ranks: RankSet, kind: Compared, cost: int, whole: int) -> Finding:
    slowed = sorted(kind.shared, key=lambda one: -kind.saves_ns(one))
    worst = slowed[0].collective
    trace = ranks.job.traces[worst.last]
    others = sorted({one.other for one in slowed})
    found = [one.collective for one in slowed]
    median = float(np.median([one.collective.core_ns for one in slowed]))
    return Finding(
        subject=f"{worst.operation} beside another",
        title=f"{len(slowed):,} {worst.operation} of {format_bytes(worst.message_bytes or 0)} in a group of "
        f"{worst.size} run beside {' and '.join(others)} and take {format_ns(median)}, {kind.slower:.1f} times the "
        f"{format_ns(kind.median_alone_ns)} that {len(kind.alone_ns):,} alone take (medians); up to {format_ns(cost)} "
        f"({format_share(cost, whole)})",
        **timed_cost(trace, cost, whole),
        where=Where(op=worst.operation),
        ranks=worst.group,
        evidence=tuple(_row(one, kind) for one in slowed[:ROWS]),
        spans=spans_of_ranks((one.last, one.sides[one.last].start_ns, one.sides[one.last].end_ns) for one in found),
        advice="Let the one that is waited for go first: ProcessGroupNCCL.Options(is_high_priority_stream=True) for "
        "its group, fewer channels for the other (options.config.max_ctas), or start the other later (no_sync() up to "
        "the last microbatch, set_requires_gradient_sync(False) of fully_shard).",
    )


def _row(one: Shared, kind: Compared) -> dict[str, Cell]:
    found = one.collective
    return {
        "operation": found.operation,
        "number": found.index,
        "group_ranks": found.size,
        "message_bytes": found.message_bytes,
        "core_ns": found.core_ns,
        "alone_median_ns": round(kind.median_alone_ns),
        "beside": one.other,
        "beside_share": round(one.share, 3),
        "exposed_ns": one.exposed_ns,
        "saves_ns": kind.saves_ns(one),
        "chance": float(f"{kind.chance:.2g}"),
    }
