"""Savings of findings by the critical path: the graph is played again without the rows that a fix takes away.

A rule names these rows (``Finding.removes``). What other work hides, or what nothing waits for, is then no saving: one
that touches no node of the critical path is 0. Of the rule's own bound and this saving the smaller one is the cost.

The saving has to be an upper bound, too, so it is not given where dependencies are missing: of programs of XLA, of
several devices of one process, and where the path of the replay begins after the first of these rows, at work with no
known dependency. A host
piece on the path that ends with device work may have waited for it in a way that is not recorded (a loop that polls),
and work that begins late for something on another stream: such time counts as saved.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from perfscope.analyzers.critical_path.graph import DEPENDENCY_NS, Graph, NodeKind, Via, dependency_graph
from perfscope.analyzers.critical_path.replay import Change, Replay
from perfscope.analyzers.time import nearest_ancestor
from perfscope.model.finding import SEVERITIES, Finding, Removed, severity_of
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns

AGREES = 0.95
"""A replay that gives this part of the rule's bound says the same: the rule's bound, which may be measured, stays."""
POLLED_NS = 100_000
"""A host piece of this length that ends soon after device work may have waited for it: within ``POLL_NS`` and a
hundredth of its own length."""
POLL_NS = 50_000


def bounded_by_path(trace: Trace, finding: Finding) -> Finding:
    """The finding with ``path_ns`` where its rows are known, and costs of at most that; without ``removes``."""
    plain, bound = replace(finding, removes=()), finding.cost_ns
    saved = saved_on_path(trace, finding.removes) if finding.removes and bound else None
    if saved is None or not bound:
        return plain
    if saved >= AGREES * bound:
        return replace(plain, path_ns=saved)
    whole = trace.fact(dependency_graph).windows.whole_ns  # type: ignore[union-attr]
    severities = (finding.severity, severity_of(saved, whole))
    each = finding.cost_ns_per_step
    why = f"Its own time is {format_ns(bound)} in all; the rest is hidden, or nothing waits for it."
    return replace(
        plain,
        path_ns=saved,
        cost_ns=saved,
        cost_ns_per_step=None if each is None else round(each * saved / bound),
        severity=min(severities, key=SEVERITIES.index),
        basis="modelled",
        detail=f"{finding.detail} {why}".strip(),
    )


def saved_on_path(trace: Trace, removes: tuple[Removed, ...]) -> int | None:
    """By how many ns all steps together are shorter without these rows; ``None`` where the path is not known there."""
    graph = trace.fact(dependency_graph)
    if graph is None or len(trace.rows["hlo_ops"]) or len(np.unique(graph.thread[~graph.on_host])) > 1:
        return None
    change = Change(durations=graph.ends - graph.starts, before=graph.before, lag=graph.lag)
    kept = 0.0
    for removed in removes:
        change, factor = _applied(trace, graph, change, removed)
        kept = max(kept, factor)
    changed = change.durations != graph.ends - graph.starts
    if change.before is not graph.before:  # only waits for work are taken away
        changed |= change.before[Via.DEPENDENCY] != graph.before[Via.DEPENDENCY]
    if not changed.any() or math.isinf(kept):
        return None
    played = Replay(graph, change)
    ends = played.ends() if changed[trace.fact(_recorded_path)].any() else graph.ends
    path, lags = played.path(ends)
    if graph.starts[path[-1]] > graph.starts[changed].min():
        return None
    saved = round(int(graph.ends[path[0]] - ends[path[0]]) * kept)
    if (changed & ~graph.on_host).any():
        saved += int(lags[lags > DEPENDENCY_NS].sum() + change.durations[path[trace.fact(_may_poll)[path]]].sum())
    return min(saved, graph.windows.whole_ns)


def _recorded_path(trace: Trace) -> Int64:
    graph = trace.fact(dependency_graph)
    if graph is None:
        return np.empty(0, np.int64)
    recorded = Change(durations=graph.ends - graph.starts, before=graph.before, lag=graph.lag)
    return Replay(graph, recorded).path(graph.ends)[0]


def _may_poll(trace: Trace) -> np.ndarray:
    """Per node: it is long host time that ends with device work."""
    graph = trace.fact(dependency_graph)
    if graph is None or graph.on_host.all():
        return np.zeros(0 if graph is None else len(graph), bool)
    ends = np.sort(graph.ends[~graph.on_host])
    index = np.searchsorted(ends, graph.ends, side="right") - 1
    lengths = graph.ends - graph.starts
    near = (index >= 0) & (graph.ends - ends[index] <= POLL_NS + lengths // 100)
    return np.asarray(near & graph.on_host & (lengths >= POLLED_NS))


def _applied(trace: Trace, graph: Graph, change: Change, removed: Removed) -> tuple[Change, float]:
    """(the change with these rows, what its saving has to be multiplied by).

    The last wait of all stays, and ends the recording.
    """
    if removed.table == "waits":
        returns = np.flatnonzero(graph.kind == NodeKind.RETURN)
        mine = returns[np.isin(graph.call[returns], removed.rows)]
        last = graph.call[returns[-1]] if len(returns) else MISSING
        before = change.before.copy()
        before[Via.DEPENDENCY, mine[graph.call[mine] != last]] = MISSING
        change = replace(change, before=before)
        waits = len(np.unique(graph.call[mine]))
        if not (graph.call[mine] == last).any():
            return change, 1.0
        return change, waits / (waits - 1) if waits > 1 else math.inf
    left = np.ones(len(trace.rows[removed.table]))
    left[removed.rows] = removed.left
    if removed.table == "slices":
        here = graph.on_host & (graph.row != MISSING)
        outer = nearest_ancestor(trace, graph.row[here], left < 1)
        factors = np.where(outer == MISSING, 1.0, left[np.maximum(outer, 0)])
    else:
        kinds = (NodeKind.COPY,) if removed.table == "copies" else (NodeKind.KERNEL, NodeKind.COMMUNICATION)
        here = np.isin(graph.kind, kinds)
        factors = left[graph.row[here]]
    change.durations[here] = np.round(change.durations[here] * factors)
    return change, 1.0
