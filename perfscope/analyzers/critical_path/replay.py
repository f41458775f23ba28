"""Playing a graph again with other durations or without some dependencies, and how late each node could have been."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.critical_path.graph import Graph
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is other than in the recording; arrays as in ``Graph``."""

    durations: Int64
    """ns a node."""
    before: Int64
    lag: Int64


def unchanged(graph: Graph) -> Change:
    """The recording as it is; copies that may be written to."""
    return Change(durations=graph.ends - graph.starts, before=graph.before.copy(), lag=graph.lag.copy())


def replay(graph: Graph, change: Change) -> Int64:
    """When each node ends with ``change``, ns. Without a change: when it ended in the recording.

    Nodes whose dependencies are not known begin when they did.
    """
    starts, durations = graph.starts.tolist(), change.durations.tolist()
    free = (graph.binds == MISSING).tolist()
    (order, launch, dependency), (order_lag, launch_lag, dependency_lag) = change.before.tolist(), change.lag.tolist()
    ends: list[int] = []
    for node, begin in enumerate(starts):
        earliest = begin if free[node] else None
        for before, lag in (
            (order[node], order_lag[node]),
            (launch[node], launch_lag[node]),
            (dependency[node], dependency_lag[node]),
        ):
            if before != MISSING and (earliest is None or ends[before] + lag > earliest):
                earliest = ends[before] + lag
        ends.append((begin if earliest is None else earliest) + durations[node])
    return np.array(ends, np.int64)


def replayed_ns(graph: Graph, change: Change) -> int:
    """Length of all windows together with ``change``, ns: they are longer by as much as the last one ends later."""
    last = int(graph.finish[np.argmax(graph.windows.ends)])
    return max(graph.windows.whole_ns + int(replay(graph, change)[last] - graph.ends[last]), 0)


def slack(graph: Graph) -> Int64:
    """By how many ns each node could have ended later without any window ending later; 0 on a critical path.

    What no window's end depends on could have ended with the last node of all.
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
