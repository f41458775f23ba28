"""Replaying a graph with other durations or fewer dependencies, and how late each node could have ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.critical_path.graph import Graph, Via
from perfscope.analyzers.critical_path.runs import Runs
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING

_NEVER = -(2**62)


class Change(Struct, frozen=True, kw_only=True):
    """Differences from the recording; arrays as in ``Graph``."""

    durations: Int64
    """Duration of each node, ns."""
    before: Int64
    lag: Int64


def unchanged(graph: Graph) -> Change:
    """Return a change without effect; its arrays are copies that may be modified."""
    return Change(durations=graph.ends - graph.starts, before=graph.before.copy(), lag=graph.lag.copy())


class Replay:
    """Replay of a graph with a change.

    Neighbours on the host lane and on streams that depend only on each other form one run of fixed length; only the
    head of a run waits for something else.
    """

    def __init__(self, graph: Graph, change: Change) -> None:
        self._graph, self._change = graph, change
        order, sequence = change.before[Via.ORDER], graph.sequence
        alone = (order != MISSING) & (change.before[1:] == MISSING).all(axis=0) & (graph.binds != MISSING)
        self._follows = alone[sequence]
        """By index in the sequence: whether the node depends only on its neighbour."""
        self._follows[:1] = False
        self._follows[1:] &= order[sequence[1:]] == sequence[:-1]
        self._heads = np.sort(sequence[~self._follows])

    def ends(self) -> Int64:
        """Return the end of each node, ns. Without a change it equals the recorded end.

        Nodes whose dependencies are unknown begin at their recorded time.
        """
        graph, change, sequence = self._graph, self._change, self._graph.sequence
        number = np.cumsum(~self._follows) - 1  # index of the head in the sequence
        together = np.cumsum((change.lag[Via.ORDER] + change.durations)[sequence])
        after_head = together - together[~self._follows][number]
        rank = np.empty(len(self._heads), np.int64)
        rank[np.argsort(sequence[~self._follows], kind="stable")] = np.arange(len(rank))
        of_head = rank[number][graph.position]  # per node: rank of its head
        behind = after_head[graph.position]
        before, durations = change.before[:, self._heads], change.durations[self._heads]
        waits = np.where(before == MISSING, 0, of_head[before] + 1)
        lags = change.lag[:, self._heads] + behind[before] + durations
        begins = (graph.binds[self._heads] == MISSING) | (before == MISSING).all(axis=0)
        earliest = np.where(begins, graph.starts[self._heads] + durations, _NEVER)
        ends = _heads_played(earliest.tolist(), waits.tolist(), lags.tolist())
        result: Int64 = ends[of_head] + behind
        return result

    def path(self, ends: Int64, last: int) -> tuple[Int64, Int64]:
        """Return (nodes from ``last`` backwards, each after its binding dependency; lags after these, ns).

        ``ends``: ends of the replay. The path stops at a node whose dependencies are not recorded.
        """
        graph, change, heads = self._graph, self._change, self._heads
        earlier, lag = change.before[Via.ORDER].copy(), change.lag[Via.ORDER].copy()
        before = change.before[:, heads]
        arrives = np.where(before == MISSING, -1, ends[before] + change.lag[:, heads])
        latest, every = np.argmax(arrives, axis=0), np.arange(len(heads))
        binding = before[latest, every]
        begins = (graph.binds[heads] == MISSING) & (arrives[latest, every] <= graph.starts[heads])
        earlier[heads] = np.where(begins, MISSING, binding)
        lag[heads] = change.lag[:, heads][latest, every]
        nodes = Runs(graph, earlier).chain(last)
        return nodes, np.append(lag[nodes[:-1]], 0)


def _heads_played(earliest: Sequence[int], waits: Sequence[Sequence[int]], lags: Sequence[Sequence[int]]) -> Int64:
    """Return the end of each head; ``waits``: per ``Via``, the number of a previous head plus one, 0 for none."""
    ends = [2 * _NEVER]
    for end, order, order_lag, launch, launch_lag, other, other_lag in zip(
        earliest, waits[0], lags[0], waits[1], lags[1], waits[2], lags[2], strict=True
    ):
        by_order, by_launch = ends[order] + order_lag, ends[launch] + launch_lag
        end = by_order if by_order > end else end
        end = by_launch if by_launch > end else end
        if other and ends[other] + other_lag > end:
            end = ends[other] + other_lag
        ends.append(end)
    return np.array(ends[1:], np.int64)


def replay(graph: Graph, change: Change) -> Int64:
    """Return the end of each node with ``change``, ns: ``Replay.ends``."""
    return Replay(graph, change).ends()


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
