"""Ranks or devices wait for one another at collectives, because one of them comes late.

Example:
    Before::

        loader = DataLoader(data, sampler=DistributedSampler(data))         # lengths differ between ranks

    After::

        loader = DataLoader(data, batch_sampler=SameLengthOnAllRanks(data))

Why it costs:
    A collective begins when its last rank arrives. The others lose the time they wait, and the step takes as long as
    the slowest rank before every collective. A rank that is always last has more work than the others (a larger shard,
    padding, an uneven split of layers or experts), waits for its data, or runs host code that the others do not.

How it is found:
    Traces of several ranks of a job: their collectives are matched (by recorded number in the group, else in order).
    The shortest side of each belongs to the rank that came last, which does not wait; the rest of the other durations
    is waiting. This needs no common clock. A rank is late by the wait of the next-to-last one, because no more could be
    saved. Lateness below the spread of the collectives' ends is not counted, nor below 10 ms for collectives on the
    host (gloo), where ranks share cores.

    The rank's work since the previous collective is compared with that of the others, each on its own clock: its device
    computed longer, was in an earlier collective, its host was in a data loader, or busy with ops. If none of it
    explains most of its lateness, the time right before its arrival is examined; if the trace has nothing there, the
    cause is `host gap`. A missing rank may have come even later: the finding has this caveat, and the rule abstains if
    more than half of the ranks are missing. For collectives on the host it also abstains if the late rank was without a
    core for half of its lateness and nothing else explains it: inputs that differ, a line that one rank alone runs, a
    sleep, a loader, or more threads than the program needs.

    The cost is measured and an upper bound: the rank's lateness, at most the longest time that another rank waited for
    it while its device computed nothing. For collectives on the host (gloo) the overlapping work is unknown.

    Processes of one JAX program (`jax.distributed`), each with several devices, are ranks: executions of a program have
    the same number on all of them, and a process is as late as its last device. A profile must name its devices (on the
    CPU from jax 0.7 on), and the profile or the run directory its process; otherwise the rule abstains.

    XLA's CPU backend records the meeting of its devices' threads at each collective in one trace, so its devices are
    judged in the same way. Their threads share the cores of one machine: they show which device is late, but not the
    cost on accelerators, so the finding has no saving.

    The rule abstains for one rank or process alone, and for one XLA profile of accelerators, which do not show when
    others arrived.

Fix:
    By the cause in the finding. Inputs that differ between ranks in one step: batches of one length on all ranks
    (`batch_sampler`, `group_by_length=True` of Transformers). No core: fewer threads per rank (`OMP_NUM_THREADS`), or a
    free machine. A line that only one rank runs, or its data loader: that line. The same kernels for longer: the clocks
    of the device. More kernels or larger grids: uneven experts, tables or layers. On XLA's CPU backend, first use no
    more virtual devices than cores (`--xla_force_host_platform_device_count`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.ranks.devices import comparable_processes, is_process
from perfscope.analyzers.ranks.job import has_ranks, named_ranks, shown_group
from perfscope.analyzers.ranks.late_advice import advice_for
from perfscope.analyzers.ranks.late_causes import cause_of, is_scheduling
from perfscope.analyzers.ranks.rank_work import rank_work
from perfscope.analyzers.ranks.rendezvous import CollectiveSkew, Skew, collective_skew
from perfscope.analyzers.ranks.sets import MATCHED, RankSet, comparable
from perfscope.analyzers.ranks.waits import (
    COMPUTE,
    EARLIER,
    HOST,
    LOADER,
    NOTHING,
    Late,
    Lateness,
    Straggling,
    explained_ns,
    lateness_of,
    launch_ns,
)
from perfscope.analyzers.spans import spans_of_ranks, worst_spans
from perfscope.analyzers.time import core_summary, per_step, whole_ns
from perfscope.model.finding import (
    MOST_ROWS,
    NOWHERE,
    AbstainError,
    Cell,
    Finding,
    Removed,
    Scope,
    Where,
    fit_title,
)
from perfscope.model.severity import severity_of
from perfscope.model.trace import MISSING, RECORDED, Trace
from perfscope.model.units import format_ns, format_share

MOST_NAMED = 4

_DID = {
    COMPUTE: "its device computed longer",
    EARLIER: "it was in an earlier collective",
    LOADER: "its host waited for the data loader",
    HOST: "its host was busy with ops",
    NOTHING: "its host did nothing the trace shows (a host gap: Python code, a sleep, waiting)",
}

WAIT_SHARE = 0.05
"""Mean wait of a device as a share of the steps from which it is reported; thread scheduling explains smaller waits."""

MIN_EXECUTIONS = 3
"""Minimum number of executions of a collective; the first one in a program also waits for compilation on other threads.
"""

CAUSE_SHARE = 0.5
"""Position between an even share (0) and all of the waiting (1) from which a device is the straggler."""

PART_SHARE = 0.01
"""Share of the steps from which a rank is named if several ranks are late in turn."""


# The finding about a rank that keeps the others waiting, from the late arrivals of a job.


def straggler_finding(ranks: RankSet, late: Lateness, named: Sequence[Straggling], *, share: float) -> Finding | None:
    """Return one finding for a job; ``None`` if the scheduler may have decided which rank comes late.

    ``named``: the ranks to name, costliest first; ``share``: share of all waiting that the first one causes.
    """
    worst = named[0]
    arrivals = sorted((arrival for each in named for arrival in each.arrivals), key=lambda late: -late.lateness_ns)
    reasons = _reasons(worst.arrivals)
    reason = reasons.most_common(1)[0][0]
    # waits for several ranks at once may sum to more than the total
    cost = min(late.whole_ns, sum(each.cost_ns for each in named))
    trace = ranks.job.traces[worst.rank]
    first = next(arrival for arrival in worst.arrivals if arrival.before.what == reason)
    cause = cause_of(ranks, worst, reason, in_turn=len(named) > 1)
    hosted = first.side.kernel == MISSING
    if hosted and is_scheduling(ranks, worst, cause, reason):
        return None
    what = advice_for(cause, reason, worst.rank, trace.fact(rank_work), hosted=hosted)
    others = len(ranks.job.members) - 1
    alone = len(named) == 1
    gone, times = ranks.job.missing, sum(len(each.arrivals) for each in named)
    who = (
        f"rank {worst.rank} comes late and {others:,} wait{'s' if others == 1 else ''}"
        if alone
        else f"{named_ranks([each.rank for each in named], MOST_NAMED)} come late in turn"
    )
    return Finding(
        subject="one rank comes late" if alone else "ranks come late in turn",
        title=fit_title(
            f"{who}: {times:,} of {late.collectives:,} collectives" + (what.short and f", {what.short}"), what.short
        ),
        detail=(f"It causes {share:.0%} of all waiting." if alone else f"Share of the waiting: {_shares(named, late)}.")
        + f" Before {_one(first)} {'it' if alone else f'rank {first.rank}'} was {format_ns(first.lateness_ns)} late: "
        + (f"{what.because}." if what.because else f"{_DID[first.before.what]}.")
        + (f" {len(gone):,} ranks are missing and may have come even later." if gone else ""),
        severity="low" if gone else severity_of(cost, late.whole_ns),
        basis="measured",
        cost_ns=cost,
        cost_ns_per_step=per_step(trace, cost),
        covers_ns={"other_ranks": explained_ns(late)} if hosted else {},
        where=_where(first, ranks)
        if what.where is None
        else replace(what.where, op=what.where.op or first.collective.operation),
        ranks=tuple(sorted(each.rank for each in named)),
        evidence=tuple(_row(arrival, ranks) for arrival in arrivals[:MOST_ROWS]),
        spans=spans_of_ranks(piece for arrival in arrivals for piece in (_before(arrival), _waited(arrival))),
        advice=what.fix,
        record=what.record,
        removes=tuple(removed for each in named for removed in _removed(each, ranks.job.traces[each.rank])),
    )


def _removed(straggling: Straggling, trace: Trace) -> tuple[Removed, ...]:
    """Return the work of the rank, on host and device, during its lateness; empty for collectives on the host."""
    on_device = [arrival for arrival in straggling.arrivals if arrival.side.kernel != MISSING]
    if not on_device:
        return ()
    late = np.array([arrival.lateness_ns for arrival in on_device], np.int64)
    launched = np.array([launch_ns(trace, arrival.side) for arrival in on_device], np.int64)
    begun = np.array([arrival.side.start_ns for arrival in on_device], np.int64)
    return (
        Removed(table="idle", rows=np.stack((launched - late, launched), axis=1), rank=straggling.rank),
        Removed(table="work", rows=np.stack((begun - late, begun), axis=1), rank=straggling.rank),
    )


def _before(late: Late) -> tuple[int, int, int]:
    """Return the interval on the rank's own clock in which the others waited for it."""
    begins = late.side.start_ns
    return late.rank, begins - late.lateness_ns, begins


def _waited(late: Late) -> tuple[int, int, int]:
    """Return the interval, on its own clock, in which the first rank waited in the collective for the late one."""
    collective = late.collective
    first = max((rank for rank in collective.sides if rank != late.rank), key=collective.wait_ns)
    begins = collective.sides[first].start_ns
    return first, begins, begins + collective.wait_ns(first)


def _reasons(arrivals: Sequence[Late]) -> Counter[str]:
    """Return ns of lateness by activity of the rank."""
    result: Counter[str] = Counter()
    for arrival in arrivals:
        result[arrival.before.what] += arrival.lateness_ns
    return result


def _shares(named: Sequence[Straggling], late: Lateness) -> str:
    total = max(1, late.cost_ns)
    return ", ".join(f"rank {each.rank} {each.cost_ns / total:.0%}" for each in named[:MOST_NAMED])


def _one(late: Late) -> str:
    operation = late.collective.operation
    return f"{'an' if operation.startswith('a') else 'a'} {operation}"


def _where(late: Late, ranks: RankSet) -> Where:
    """Return the user's line that ran while the others waited, if stacks were recorded; else the kernel."""
    if late.before.frame is not None:
        return Where(op=late.collective.operation, file=late.before.frame.file, line=late.before.frame.line)
    side = late.side
    trace = ranks.job.traces[late.rank]
    kernel = None
    if side.kernel != MISSING:
        kernel = trace.text(int(trace.rows["kernels"]["name"][side.kernel])).split("(", 1)[0]
    return Where(op=late.collective.operation, kernel=kernel)


def _row(late: Late, ranks: RankSet) -> dict[str, Cell]:
    collective = late.collective
    frame = late.before.frame
    return {
        "straggler": late.rank,
        "operation": collective.operation,
        "number": collective.index,
        "group": shown_group(collective.group, " ranks"),
        "late_ns": late.lateness_ns,
        "others_wait_ns": late.waited_ns,
        "core_ns": collective.core_ns,
        "message_bytes": collective.message_bytes,
        "before": late.before.what,
        "more_than_others_ns": late.before.more.get(late.before.what),
        "compute_before_ns": late.before.compute_ns,
        "collectives_before_ns": late.before.collectives_ns,
        "loader_before_ns": late.before.loader_ns,
        "host_ops_before_ns": late.before.ops_ns,
        "code": None if frame is None else f"{frame.file}:{frame.line}",
        "clock_uncertainty_ns": ranks.clocks.uncertainty_ns.get(late.rank),
    }


def examined(trace: Trace) -> Scope:
    """Count the meetings of the devices of one recording."""
    return Scope(len(trace.fact(collective_skew).meetings), MATCHED)


def compared(traces: Sequence[Trace]) -> Scope:
    """Count the matched collectives of ranks."""
    sets = (*comparable(traces), *comparable_processes(traces))
    return Scope(sum(len(ranks.matching.matched) for ranks in sets), MATCHED)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding if the devices of one trace wait long for one another, with a row per collective."""
    if has_ranks(trace):
        return  # one of several ranks: see `compare`
    skew = trace.fact(collective_skew)
    if not skew.meetings and is_process(trace):
        return  # one of several processes: see `compare`
    if not skew.meetings and "hlo" not in trace.recorded:
        raise AbstainError(f"not recorded: {RECORDED['collectives']}", ("collectives",))
    if not skew.meetings:
        raise AbstainError(
            "arrival times at collectives were not recorded (XLA's CPU backend with several devices records them)"
        )
    judged = [collective for collective in skew.collectives if collective.executions >= MIN_EXECUTIONS]
    devices = {device for skew in judged for device in skew.devices}
    if not devices:
        raise AbstainError(f"no collective ran {MIN_EXECUTIONS} times: record more steps")
    cores = trace.fact(core_summary)
    virtual = not trace.rows["devices"]["name"].size
    if cores is not None and cores.busy and virtual:
        raise AbstainError("the machine was busy, so virtual devices wait for devices that have no core")
    if cores is not None and 0 < cores.available < len(devices) and virtual:
        raise AbstainError(
            f"{len(devices):,} virtual devices share {cores.available:g} cores and take turns: their waits are not "
            "those of real devices"
        )
    mean = sum(skew.wait_ns for skew in judged) // len(devices)
    whole = whole_ns(trace)
    if mean >= WAIT_SHARE * whole > 0:
        yield _finding(trace, skew, judged, len(devices), mean)


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield one finding per job whose ranks wait long for one another."""
    sets = (*comparable(traces), *comparable_processes(traces))
    known = [ranks for ranks in sets if 2 * len(ranks.job.members) >= (ranks.job.world_size or 0)]
    if sets and not known:
        recorded, world = len(sets[0].job.members), sets[0].job.world_size
        raise AbstainError(
            f"{recorded:,} of {world:,} ranks were recorded, so the last arrival is unknown; record all ranks"
        )
    findings = [
        _of_ranks(ranks, lateness)
        for ranks in known
        if (lateness := lateness_of(ranks)).cost_ns >= WAIT_SHARE * lateness.whole_ns > 0
    ]
    yield from (finding for finding in findings if finding is not None)
    if findings and not any(findings):
        raise AbstainError(
            "the late rank waited for a core, which it shares with other ranks or programs; record again with a free "
            "core for each rank"
        )


def _of_ranks(ranks: RankSet, late: Lateness) -> Finding | None:
    size = len(ranks.job.members)
    share = late.stragglers[0].cost_ns / late.cost_ns
    one_is_late = share >= 1 / size + CAUSE_SHARE * (1 - 1 / size)
    named = [
        straggler for straggler in late.stragglers if straggler.cost_ns >= PART_SHARE * late.whole_ns
    ] or late.stragglers
    return straggler_finding(ranks, late, named[:1] if one_is_late else named, share=share)


def _finding(trace: Trace, skew: Skew, judged: list[CollectiveSkew], devices: int, mean: int) -> Finding:
    names = {(skew.program_id, skew.module, skew.instruction) for skew in judged}
    caused: dict[int, int] = defaultdict(int)
    met = [meeting for meeting in skew.meetings if (meeting.program_id, meeting.module, meeting.instruction) in names]
    for meeting in met:
        caused[meeting.straggler] += sum(meeting.waits_ns)
    late = max(sorted(caused), key=lambda device: caused[device])
    share = caused[late] / max(1, sum(caused.values()))
    one_is_late = share >= 1 / devices + CAUSE_SHARE * (1 - 1 / devices)
    verdict = (
        f"device {late} causes {share:.0%} of it"
        if one_is_late
        else f"all are late in turn (device {late} most, {share:.0%} of it)"
    )
    return Finding(
        subject="one device comes late" if one_is_late else "devices come unevenly",
        title=f"{devices} devices wait for one another: {format_ns(mean)} each "
        f"({format_share(mean, whole_ns(trace))}), {len(judged):,} collectives",
        detail=f"{verdict[0].upper()}{verdict[1:]}.",
        severity="medium" if one_is_late else "low",
        basis="measured",
        where=_where_straggler(trace, judged[0]),
        evidence=tuple(
            {
                "collective": skew.instruction,
                "operation": skew.operation,
                "program": skew.module,
                "executions": skew.executions,
                "wait_ns": skew.wait_ns,
                "skew_ns": skew.skew_ns,
                "largest_skew_ns": skew.largest_skew_ns,
                "work_ns": skew.work_ns,
                "straggler": skew.straggler,
                "straggler_last": f"{skew.straggler_share:.0%}",
            }
            for skew in judged[:MOST_ROWS]
        ),
        spans=worst_spans(
            [min(meeting.arrivals_ns) for meeting in met],
            [max(meeting.arrivals_ns) for meeting in met],
            [meeting.skew_ns for meeting in met],
        ),
        advice=(
            f"Compare what device {late} does before `{judged[0].instruction}` with the others: shard sizes, padding, "
            "uneven experts or layers, work on process 0 only."
            if one_is_late
            else "Set XLA_FLAGS=--xla_force_host_platform_device_count to the number of cores, and look again. Virtual "
            "devices that outnumber the cores take turns."
        ),
    )


def _where_straggler(trace: Trace, skew: CollectiveSkew) -> Where:
    """Return the source line of the collective in the program's metadata."""
    from perfscope.analyzers.hlo import where_of

    for module in trace.hlo:
        if (module.name, module.program_id) != (skew.module, skew.program_id):
            continue
        for computation in module.computations.values():
            if skew.instruction in computation.by_name:
                return where_of(computation.by_name[skew.instruction])
    return NOWHERE
