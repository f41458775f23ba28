"""Replaying a graph with other durations or fewer dependencies, and how late each node could have ended."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from perfscope.analyzers.critical_path.graph import Graph
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING
from perfscope.native import library as native_library

_NEVER = -(2**62)


class Change(Struct, frozen=True, kw_only=True):
    """Differences from the recording; arrays as in ``Graph``."""

    durations: Int64
    """Duration of each node, ns."""
    before: Int64
    lag: Int64
    since_ns: int = np.iinfo(np.int64).max
    """Begin of the first host time that is removed."""


def unchanged(graph: Graph) -> Change:
    """Return a change without effect; its arrays are copies that may be modified."""
    return Change(durations=graph.ends - graph.starts, before=graph.before.copy(), lag=graph.lag.copy())


def replay(graph: Graph, change: Change) -> Int64:
    """Return the end of each node with ``change``, ns. Without a change it equals the recorded end.

    A node whose dependencies are unknown begins at its recorded time.
    """
    unbound = (graph.binds == MISSING) | (change.before == MISSING).all(axis=0)
    earliest = np.where(unbound, graph.starts, _NEVER)
    if native_library() is not None:
        from perfscope.native import sweep

        return sweep.replay(earliest, change.durations, change.before, change.lag)
    ends: list[int] = []
    columns = (earliest, change.durations, *change.before, *change.lag)
    for begin, duration, order, launch, other, order_lag, launch_lag, other_lag in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        for before, lag in ((order, order_lag), (launch, launch_lag), (other, other_lag)):
            if before != MISSING and ends[before] + lag > begin:
                begin = ends[before] + lag
        ends.append(begin + duration)
    return np.array(ends, np.int64)


def replayed_path(graph: Graph, change: Change, ends: Int64, last: int) -> tuple[Int64, Int64]:
    """Return (nodes from ``last`` backwards, each after its binding dependency; lags after these, ns).

    ``ends``: ends of the replay. The path stops at a node whose dependencies are not recorded.
    """
    alone = np.where(graph.binds == MISSING, graph.starts, 2 * _NEVER)
    if native_library() is not None:
        from perfscope.native import sweep

        return sweep.path(change.before, change.lag, ends, alone, last)
    arrives = np.where(change.before == MISSING, 2 * _NEVER, ends[change.before] + change.lag)
    latest, every = np.argmax(arrives, axis=0), np.arange(len(graph))
    before = np.where(arrives[latest, every] <= alone, MISSING, change.before[latest, every]).tolist()
    found, node = [], last
    while node != MISSING:
        found.append(node)
        node = before[node]
    nodes = np.array(found, np.int64)
    return nodes, np.append(change.lag[latest[nodes[:-1]], nodes[:-1]], 0)


def replayed_ns(graph: Graph, change: Change) -> int:
    """Return the length of all windows together with ``change``, ns.

    It changes by as much as the end of the last node.
    """
    last = int(graph.finish[np.argmax(graph.windows.ends)])
    return max(graph.windows.whole_ns + int(replay(graph, change)[last] - graph.ends[last]), 0)


def slack(graph: Graph) -> Int64:
    """Return by how many ns each node could have ended later without delaying any window; 0 on a critical path.

    Nodes that no window's end depends on could have ended together with the last node of all.
    """
    latest = [max(int(graph.ends.max()), int(graph.windows.ends.max()))] * len(graph)
    for window, node in enumerate(graph.finish.tolist()):
        latest[node] = min(latest[node], max(int(graph.windows.ends[window]), int(graph.ends[node])))
    durations = (graph.ends - graph.starts).tolist()
    befores, lags = graph.before.tolist(), graph.lag.tolist()
    for node in range(len(graph) - 1, -1, -1):
        begin = latest[node] - durations[node]
        for before, lag in zip(befores, lags, strict=True):
            earlier = before[node]
            if earlier != MISSING and begin - lag[node] < latest[earlier]:
                latest[earlier] = begin - lag[node]
    spare: Int64 = np.maximum(np.array(latest, np.int64) - graph.ends, 0)
    return spare
