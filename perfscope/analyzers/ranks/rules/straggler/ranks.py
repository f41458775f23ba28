"""The finding of a rank that keeps the others waiting, from the late arrivals of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perfscope.analyzers.ranks.lateness import COMPUTE, EARLIER, HOST, LOADER, NOTHING, Late, Lateness, Straggling
from perfscope.analyzers.ranks.sets import RankSet
from perfscope.analyzers.time.spans import spans_of_ranks
from perfscope.analyzers.time.steps import per_step
from perfscope.model.finding import Cell, Finding, Where, severity_of
from perfscope.model.trace import MISSING
from perfscope.model.units import format_ns, format_share

ROWS = 20
MOST_NAMED = 4

_DID = {
    COMPUTE: "its device computed longer",
    EARLIER: "it was in an earlier collective",
    LOADER: "its host waited for the data loader",
    HOST: "its host was busy with ops",
    NOTHING: "its host did nothing the trace shows (a host gap: Python code, a sleep, waiting)",
}

_ADVICE = {
    COMPUTE: "Give it no more work than the others: shard sizes that do not divide evenly, padding, uneven experts, "
    "tables or layers; if its share is the same, compare the clocks of its device (nvidia-smi -q -d CLOCK).",
    EARLIER: "Follow the wait to the group it was held up in: the rank that is last there is the cause.",
    LOADER: "Give its loader more workers (DataLoader(num_workers=..., persistent_workers=True, prefetch_factor=4)), "
    "or shard the data evenly: one slow disk or one long shard keeps all ranks waiting.",
    HOST: "Take host work off it: what only this rank does (logging, checkpoints, metrics), or a busier or slower "
    "CPU; pin its process to cores (numactl), capture its steps (torch.compile, CUDA graphs).",
    NOTHING: "Look at what only this rank runs between its ops: record it once more with Python stacks (the detail "
    "pass of `perfscope run`, or with_stack=True); logging, checkpoints, a lock, garbage collection, a sleep.",
}


def straggler_finding(ranks: RankSet, late: Lateness, named: Sequence[Straggling], *, share: float) -> Finding:
    """One finding for a job.

    ``named``: the ranks to name, the costliest first; ``share``: what the first of them causes of all waiting.
    """
    worst = named[0]
    arrivals = sorted((one for each in named for one in each.arrivals), key=lambda one: -one.lateness_ns)
    reasons = _reasons(worst.arrivals)
    reason = reasons.most_common(1)[0][0]
    # waits for several ranks at once may sum to more than there is
    cost = min(late.whole_ns, sum(each.cost_ns for each in named))
    trace = {member.rank: member.trace for member in ranks.job.members}[worst.rank]
    others = len(ranks.job.members) - 1
    first = next(one for one in worst.arrivals if one.before.what == reason)
    alone = len(named) == 1
    gone = ranks.job.missing
    who = (
        f"rank {worst.rank} keeps {others:,} other{'s' if others > 1 else ''} waiting"
        if alone
        else f"ranks {', '.join(str(each.rank) for each in named[:MOST_NAMED])} keep each other and the rest waiting"
    )
    return Finding(
        subject="one rank comes late" if alone else "ranks come late in turn",
        title=f"{who} up to {format_ns(cost)} ({format_share(cost, late.whole_ns)}) at "
        f"{sum(len(each.arrivals) for each in named):,} of {late.collectives:,} collectives"
        + (f" and causes {share:.0%} of all waiting" if alone else f": {_shares(named, late)}")
        + f"; before {_one(first)} {'it' if alone else f'rank {first.rank}'} was {format_ns(first.lateness_ns)} late: "
        + _DID[first.before.what]
        + (f"; {len(gone):,} ranks are missing, one of which may have come later still" if gone else ""),
        severity="low" if gone else severity_of(cost, late.whole_ns),
        basis="measured",
        cost_ns=cost,
        cost_ns_per_step=per_step(trace, cost),
        where=_where(first, ranks),
        ranks=tuple(sorted(each.rank for each in named)),
        evidence=tuple(_row(one, ranks) for one in arrivals[:ROWS]),
        spans=spans_of_ranks(piece for one in arrivals for piece in (_before(one), _waited(one))),
        advice=_ADVICE[reason],
    )


def _before(late: Late) -> tuple[int, int, int]:
    """What the rank did while the others waited for it, on its own clock."""
    begins = late.collective.sides[late.rank].start_ns
    return late.rank, begins - late.lateness_ns, begins


def _waited(late: Late) -> tuple[int, int, int]:
    """How long the rank that came first was in the collective until the late one came, on its own clock."""
    one = late.collective
    first = max((rank for rank in one.sides if rank != late.rank), key=one.wait_ns)
    begins = one.sides[first].start_ns
    return first, begins, begins + one.wait_ns(first)


def _reasons(arrivals: Sequence[Late]) -> Counter[str]:
    """ns of lateness by what the rank did."""
    found: Counter[str] = Counter()
    for one in arrivals:
        found[one.before.what] += one.lateness_ns
    return found


def _shares(named: Sequence[Straggling], late: Lateness) -> str:
    total = max(1, late.cost_ns)
    return ", ".join(f"rank {each.rank} {each.cost_ns / total:.0%}" for each in named[:MOST_NAMED])


def _one(late: Late) -> str:
    operation = late.collective.operation
    return f"{'an' if operation.startswith('a') else 'a'} {operation}"


def _where(late: Late, ranks: RankSet) -> Where:
    """The user's line that ran while the others waited, where stacks were recorded; the kernel otherwise."""
    if late.before.frame is not None:
        return Where(op=late.collective.operation, file=late.before.frame.file, line=late.before.frame.line)
    side = late.collective.sides[late.rank]
    trace = {member.rank: member.trace for member in ranks.job.members}[late.rank]
    kernel = None
    if side.kernel != MISSING:
        kernel = trace.text(int(trace.rows["kernels"]["name"][side.kernel])).split("(", 1)[0]
    return Where(op=late.collective.operation, kernel=kernel)


def _row(late: Late, ranks: RankSet) -> dict[str, Cell]:
    one = late.collective
    frame = late.before.frame
    return {
        "straggler": late.rank,
        "operation": one.operation,
        "number": one.index,
        "group": _group(one.group),
        "late_ns": late.lateness_ns,
        "others_wait_ns": late.waited_ns,
        "core_ns": one.core_ns,
        "message_bytes": one.message_bytes,
        "before": late.before.what,
        "more_than_others_ns": late.before.more.get(late.before.what),
        "compute_before_ns": late.before.compute_ns,
        "collectives_before_ns": late.before.collectives_ns,
        "loader_before_ns": late.before.loader_ns,
        "host_ops_before_ns": late.before.ops_ns,
        "code": None if frame is None else f"{frame.file}:{frame.line}",
        "clock_uncertainty_ns": ranks.clocks.uncertainty_ns.get(late.rank),
    }


def _group(group: Sequence[int]) -> str:
    """``0-7``, ``0,2,4``, ``0,8,... (16 ranks)``."""
    if len(group) > 1 and list(group) == list(range(group[0], group[-1] + 1)):
        return f"{group[0]}-{group[-1]}"
    return ",".join(map(str, group)) if len(group) <= 8 else f"{group[0]},{group[1]},... ({len(group)} ranks)"
