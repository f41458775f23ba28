"""Savings of findings by the critical path: the graph is replayed without the work that a fix removes.

A rule declares that work (``Finding.removes``). Removing work that other work hides, or that nothing waits for, saves
nothing: a finding without a node on the critical path saves 0. The cost of a finding is the smaller of the rule's own
bound and this saving.

The saving must be an upper bound too, so it is unknown if dependencies are missing: for XLA programs, for several
devices of one process, and if the replayed path begins after the first removed event, at work without known
dependencies. The finding then has the reason. Two kinds of time count as saved although they may have waited: a host
piece on the path that ends with device work (a polling loop, whose wait is not recorded), and work that begins late
because of another stream.

Savings of findings that compare ranks come from the graph of the job (``job_graph``), in which a collective ends on all
ranks once the last rank has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.critical_path.graph import (
    DEPENDENCY_NS,
    RECORDING_WORK,
    Graph,
    NodeKind,
    Via,
    dependency_graph,
)
from perfscope.analyzers.critical_path.job_graph import JobGraph, job_graphs
from perfscope.analyzers.critical_path.replay import Change, replay, replayed_path
from perfscope.analyzers.spans import nearest_ancestor
from perfscope.model.finding import Finding, Removed
from perfscope.model.intervals import Int64, covered, union
from perfscope.model.severity import SEVERITIES, severity_of
from perfscope.model.trace import MISSING, Trace

AGREES = 0.95
"""Smallest ratio of the replayed saving to the rule's bound at which the two agree; the rule's bound, which may be
measured, is then kept.
"""
POLL_NS = 50_000
"""A long host piece may poll the device if it ends within this time, and a hundredth of its length, after device work.
"""

HIDDEN = "The saving is the part of its time that is on the critical path; the rest overlaps with other work."

NOT_NAMED = "which events a fix takes away does not follow from the recording"
NO_GRAPH = "neither a host thread nor device work is recorded"
IN_PROGRAMS = "dependencies inside programs of XLA are not recorded"
SEVERAL_DEVICES = "the process has several devices, whose dependencies on each other are not recorded"
ELSEWHERE = "it is on no thread and no stream that the path follows"
ONLY_WAIT = "it is the only wait of the recording, and ends it"
OUTSIDE = "a part of it lies outside the recorded steps"
BEGINS_LATER = "the path begins later, at work whose dependencies are not recorded"


class PathSaving(Struct, frozen=True, kw_only=True):
    """Time saved in all steps together, or the reason why it is unknown."""

    ns: int | None = None
    reason: str | None = None


def bounded_by_path(trace: Trace, finding: Finding) -> Finding:
    """Return the finding with its cost limited to the path's saving, or with the reason why that is unknown.

    ``removes`` is cleared.
    """
    if not finding.cost_ns or finding.run_ns is not None or not trace.recorded & RECORDING_WORK:
        return replace(finding, removes=())
    graph = trace.fact(dependency_graph)
    return _bounded(finding, saved_on_path(trace, finding.removes), 0 if graph is None else graph.windows.whole_ns)


def bounded_by_job(traces: Sequence[Trace], finding: Finding) -> Finding:
    """Return the same for a finding that compares the ranks of a job."""
    if not finding.cost_ns or finding.run_ns is not None or not any(t.recorded & RECORDING_WORK for t in traces):
        return replace(finding, removes=())
    ranks = {removed.rank for removed in finding.removes}
    jobs = [job for job in job_graphs(traces) if ranks <= job.ranks]
    if not ranks or not jobs:
        return replace(finding, removes=(), path_reason=NOT_NAMED)
    return _bounded(finding, saved_in_job(jobs[0], finding.removes), jobs[0].whole_ns)


def _bounded(finding: Finding, saving: PathSaving, whole_ns: int) -> Finding:
    plain, bound, saved = replace(finding, removes=()), finding.cost_ns, saving.ns
    if saved is None or not bound:
        return replace(plain, path_reason=saving.reason)
    if saved >= AGREES * bound:
        return replace(plain, path_ns=saved)
    severities = (finding.severity, severity_of(saved, whole_ns))
    each = finding.cost_ns_per_step
    return replace(
        plain,
        path_ns=saved,
        own_ns=bound,
        cost_ns=saved,
        cost_ns_per_step=None if each is None else round(each * saved / bound),
        severity=min(severities, key=SEVERITIES.index),
        basis="modelled",
        detail=f"{finding.detail} {HIDDEN}".strip(),
    )


def saved_on_path(trace: Trace, removes: tuple[Removed, ...]) -> PathSaving:
    """Return the time saved in all steps of one process by removing ``removes``."""
    graph = trace.fact(dependency_graph)
    if not removes or graph is None:
        return PathSaving(reason=NOT_NAMED if graph is not None else NO_GRAPH)
    if len(trace.rows["hlo_ops"]):
        return PathSaving(reason=IN_PROGRAMS)
    if len(np.unique(graph.thread[~graph.on_host])) > 1:
        return PathSaving(reason=SEVERAL_DEVICES)
    spans = [removed for removed in removes if removed.table == "slices"]
    change, kept = _without_spans(trace, graph, spans), 0.0
    for removed in _with_joined_times(removed for removed in removes if removed.table != "slices"):
        if removed.table == "idle" and not _inside(graph, removed.rows):
            return PathSaving(reason=OUTSIDE)
        change, factor = _applied(graph, change, removed)
        kept = max(kept, factor)
    if math.isinf(kept):
        return PathSaving(reason=ONLY_WAIT)
    last = int(graph.finish[np.argmax(graph.windows.ends)])
    saving = _saved(graph, change, np.array([last]), trace.fact(_recorded_path), max(kept, 1.0))
    if saving.ns is None:
        return saving
    return replace(saving, ns=min(saving.ns + _after(graph, last, removes), graph.windows.whole_ns))


def _with_joined_times(removes: Iterable[Removed]) -> list[Removed]:
    """Return the removals, those of time as one per table and rank."""
    result: list[Removed] = []
    times: dict[tuple[str, int | None], list[Removed]] = {}
    for removed in removes:
        if removed.table in ("idle", "work"):
            times.setdefault((removed.table, removed.rank), []).append(removed)
        else:
            result.append(removed)
    joined = (
        replace(parts[0], rows=np.concatenate([part.rows.reshape(-1, 2) for part in parts])) for parts in times.values()
    )
    return [*joined, *result]


def _inside(graph: Graph, rows: Int64) -> bool:
    """Whether all intervals are within the recorded steps."""
    spans = union(*rows.reshape(-1, 2).T)
    return int(covered(spans, graph.windows.starts, graph.windows.ends).sum()) == spans.total()


def _after(graph: Graph, last: int, removes: tuple[Removed, ...]) -> int:
    """Return the removed time between the last node and the end of the recording, where no host work is recorded."""
    end = int(graph.windows.ends.max())
    idle = [removed.rows.reshape(-1, 2) for removed in removes if removed.table == "idle"]
    if not idle or graph.ends[last] >= end:
        return 0
    return int(covered(union(*np.concatenate(idle).T), graph.ends[[last]], [end])[0])


def saved_in_job(job: JobGraph, removes: tuple[Removed, ...]) -> PathSaving:
    """Return the time saved in all steps of a job, measured between the ends of the rank that ends last."""
    graph = job.graph
    if graph is None:
        return PathSaving(reason=job.reason)
    change = _recording(graph)
    for removed in _with_joined_times(removes):
        mine = job.rank == removed.rank
        change, _ = _applied(graph, change, job.on_clock(removed), mine)
        if removed.table == "kernels":
            gone = removed.rows[np.broadcast_to(np.asarray(removed.left) == 0, removed.rows.shape)]
            parted = mine & job.joined & np.isin(graph.row, gone)
            before = change.before.copy()
            before[:, parted] = job.before_joining[:, parted]
            change = replace(change, before=before)
    saving = _saved(graph, change, graph.finish, np.arange(len(graph)), 1.0)
    return saving if saving.ns is None else replace(saving, ns=min(saving.ns, job.whole_ns))


def _recording(graph: Graph) -> Change:
    return Change(durations=graph.ends - graph.starts, before=graph.before, lag=graph.lag)


def _saved(graph: Graph, change: Change, finish: Int64, recorded_path: Int64, times: float) -> PathSaving:
    """Return how much earlier the last node of ``finish`` ends with the change, multiplied by ``times``."""
    shorter = change.durations != graph.ends - graph.starts
    changed = shorter | (change.lag != graph.lag).any(axis=0) | (change.before != graph.before).any(axis=0)
    if not changed.any():
        return PathSaving(reason=ELSEWHERE)
    ends = replay(graph, change) if changed[recorded_path].any() else graph.ends
    last = int(finish[np.argmax(ends[finish])])
    path, lags = replayed_path(graph, change, ends, last)
    elsewhere = changed & ~(graph.on_host & shorter)
    if graph.starts[path[-1]] > min(change.since_ns, graph.starts[elsewhere].min(initial=change.since_ns)):
        return PathSaving(reason=BEGINS_LATER)
    saved = round(int(graph.ends[finish].max() - ends[last]) * times)
    if (shorter & ~graph.on_host).any():
        polled = np.minimum(_polled(graph)[path], change.durations[path])
        saved += int(lags[lags > DEPENDENCY_NS].sum() + polled.sum())
    return PathSaving(ns=saved)


def _recorded_path(trace: Trace) -> Int64:
    graph = trace.fact(dependency_graph)
    if graph is None:
        return np.empty(0, np.int64)
    last = int(graph.finish[np.argmax(graph.windows.ends)])
    return replayed_path(graph, _recording(graph), graph.ends, last)[0]


def _polled(graph: Graph) -> Int64:
    """Return the time of each node in long host pieces that end with device work, and so may have waited for it."""
    ends, long = np.sort(graph.ends[~graph.on_host]), graph.long
    index, lengths = np.searchsorted(ends, long.ends, side="right") - 1, long.ends - long.starts
    near = index >= 0
    near[near] = (long.ends - ends[index])[near] <= POLL_NS + lengths[near] // 100
    result = np.zeros(len(graph), np.int64)
    np.add.at(result, long.node[near], lengths[near])
    return result


def _applied(graph: Graph, change: Change, removed: Removed, mine: np.ndarray | None = None) -> tuple[Change, float]:
    """Return (the change without the removed work, factor for its saving).

    ``mine``: mask of the nodes that may change.
    """
    here = np.ones(len(graph), bool) if mine is None else mine
    if removed.table == "waits":
        return _without_waits(graph, change, removed.rows)
    if removed.table in ("idle", "work"):
        return _without_time(graph, change, removed, here), 1.0
    kinds = (NodeKind.COPY,) if removed.table == "copies" else (NodeKind.KERNEL, NodeKind.COMMUNICATION)
    here = here & np.isin(graph.kind, kinds) & (graph.row != MISSING)
    left = np.ones(int(max(graph.row[here].max(initial=-1), removed.rows.max(initial=-1))) + 1)
    left[removed.rows] = removed.left
    durations = change.durations.copy()
    durations[here] = np.round(durations[here] * left[graph.row[here]])
    return replace(change, durations=durations), 1.0


def _without_spans(trace: Trace, graph: Graph, spans: Sequence[Removed]) -> Change:
    """Return the recording without host time inside spans."""
    change = _recording(graph)
    if not spans:
        return change
    host = np.flatnonzero(graph.on_host)
    pieces = graph.host_pieces(graph.starts[host], graph.ends[host])
    rows, lengths = graph.lane.slice[pieces.piece], pieces.ends - pieces.starts
    shares = np.ones(len(rows))
    for removed in spans:
        left = np.ones(len(trace.rows["slices"]))
        left[removed.rows] = removed.left
        outer = nearest_ancestor(trace, rows, left < 1)
        shares *= np.where(outer == MISSING, 1.0, left[np.maximum(outer, 0)])
    gone = np.bincount(pieces.interval, lengths - np.round(lengths * shares), len(host)).astype(np.int64)
    change.durations[host] -= gone
    return replace(change, since_ns=int(pieces.starts[shares < 1].min(initial=change.since_ns)))


def _without_waits(graph: Graph, change: Change, calls: np.ndarray) -> tuple[Change, float]:
    """Return the change without these waits. The last wait of all stays, because it ends the recording."""
    returns = np.flatnonzero(graph.kind == NodeKind.RETURN)
    mine = returns[np.isin(graph.call[returns], calls)]
    last = graph.call[returns[-1]] if len(returns) else MISSING
    before = change.before.copy()
    before[Via.DEPENDENCY, mine[graph.call[mine] != last]] = MISSING
    change = replace(change, before=before)
    waits = len(np.unique(graph.call[mine]))
    if not (graph.call[mine] == last).any():
        return change, 1.0
    return change, waits / (waits - 1) if waits > 1 else math.inf


def _without_time(graph: Graph, change: Change, removed: Removed, here: np.ndarray) -> Change:
    """Return the change without intervals of time: of the host and delays, or of kernels and copies."""
    spans = union(*removed.rows.reshape(-1, 2).T)
    at_work = (graph.kind == NodeKind.KERNEL) | (graph.kind == NodeKind.COPY)
    taken = here & (graph.on_host if removed.table == "idle" else at_work)
    durations, lag = change.durations.copy(), change.lag
    inside = covered(spans, graph.starts[taken], graph.ends[taken])
    durations[taken] = np.maximum(durations[taken] - inside, 0)
    since = change.since_ns
    if removed.table == "idle":
        begins = graph.starts[taken][inside > 0]
        removed_at = np.maximum(begins, spans.starts[np.searchsorted(spans.ends, begins, side="right")])
        since = int(removed_at.min(initial=since))
        lag = lag.copy()
        for via in Via:
            late = here & (graph.before[via] != MISSING) & (lag[via] > 0)
            ended = np.minimum(graph.ends[graph.before[via, late]], graph.starts[late])
            lag[via, late] = np.maximum(lag[via, late] - covered(spans, ended, graph.starts[late]), 0)
    return replace(change, durations=durations, lag=lag, since_ns=since)
