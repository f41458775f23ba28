"""Replays and paths equal those of one node at a time, to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.critical_path import Change, Graph, critical_path, dependency_graph, replay, unchanged
from perfscope.analyzers.critical_path.path import Walk
from perfscope.analyzers.critical_path.replay import replayed_path
from perfscope.analyzers.readers.load import load_path
from perfscope.model.trace import MISSING, Trace
from tests.critical_path.machine import OPS, Op, run


def ends_one_by_one(graph: Graph, change: Change) -> list[int]:
    """When each node ends."""
    ends: list[int] = []
    for node in range(len(graph)):
        arrives = [
            ends[before] + int(lag)
            for before, lag in zip(change.before[:, node].tolist(), change.lag[:, node], strict=True)
            if before != MISSING
        ]
        if graph.binds[node] == MISSING or not arrives:
            arrives.append(int(graph.starts[node]))
        ends.append(max(arrives) + int(change.durations[node]))
    return ends


def path_one_by_one(graph: Graph, change: Change, ends: list[int]) -> list[int]:
    """From the end of the last step back, what each node waited for last."""
    nodes = [int(graph.finish[np.argmax(graph.windows.ends)])]
    while True:
        node = nodes[-1]
        arrives = [
            (ends[before] + int(lag), -via, before)
            for via, (before, lag) in enumerate(zip(change.before[:, node].tolist(), change.lag[:, node], strict=True))
            if before != MISSING
        ]
        if not arrives or (graph.binds[node] == MISSING and max(arrives)[0] <= graph.starts[node]):
            return nodes
        nodes.append(max(arrives)[2])


def changed(graph: Graph, seed: int) -> Change:
    """Other durations and lags, and some dependencies less."""
    drawn, change = np.random.default_rng(seed), unchanged(graph)
    change.durations[:] = np.round(change.durations * drawn.choice([0, 0.5, 1], len(graph)))
    change.before[:, drawn.random(len(graph)) < 0.1] = MISSING
    change.before[2, drawn.random(len(graph)) < 0.5] = MISSING
    change.lag[1] //= 2
    return change


def check(trace: Trace, seed: int) -> None:
    """The same both ways."""
    graph, path = trace.fact(dependency_graph), trace.fact(critical_path)
    if graph is None:
        return
    assert path is not None
    change = changed(graph, seed)
    ends = replay(graph, change)
    assert ends.tolist() == ends_one_by_one(graph, change)
    last = int(graph.finish[np.argmax(graph.windows.ends)])
    nodes, lags = replayed_path(graph, change, ends, last)
    assert nodes.tolist() == path_one_by_one(graph, change, ends.tolist())
    assert (ends[nodes[:-1]] - change.durations[nodes[:-1]] == ends[nodes[1:]] + lags[:-1]).all()
    walk, pieces = Walk(graph), []
    windows = graph.windows
    for window, (low, time) in enumerate(zip(windows.starts.tolist(), windows.ends.tolist(), strict=True)):
        node = int(graph.finish[window])
        while time > low:
            some, node, time = walk.back(node, time, low)
            pieces += [(start, end, window, of, gap) for start, end, of, gap in some]
    columns = (path.starts, path.ends, path.window, path.node, path.gap)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == sorted(pieces)


@given(OPS, st.sampled_from([0, 20]), st.integers(0, 2**16))
def test_drawn_programs(ops: list[Op], stall: int, seed: int) -> None:
    check(run(ops, stall=stall)[0], seed)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name", ["TraceLens__h100_bert-small.json.gz", "HolisticTraceAnalysis__cupti_profiler.json.gz"]
)
def test_recordings(corpus: Path, name: str) -> None:
    for seed, trace in enumerate(load_path(corpus / "kineto" / name).traces):
        check(trace, seed)
