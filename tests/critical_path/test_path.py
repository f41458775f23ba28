"""The chain that bounds a step: known answers, exact sums on drawn programs and on every recording of the corpus."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.critical_path import (
    PARTS,
    Graph,
    NodeKind,
    critical_path,
    dependency_graph,
    path_parts,
    path_summary,
    replay,
    replayed_ns,
    slack,
    unchanged,
)
from perfscope.analyzers.critical_path.path import UNKNOWN_GAP
from perfscope.analyzers.readers.load import load_path
from perfscope.analyzers.time import account_windows
from perfscope.model.trace import MISSING, CallKind, Trace
from tests.build import TraceBuilder
from tests.conftest import corpus_files
from tests.critical_path.machine import BACK, BETWEEN, LATENCY, OPS, Op, run

US = 1000


def names(trace: Trace) -> list[str]:
    """Works and gaps of the path in order of time; host pieces are ``host``."""
    path = trace.fact(critical_path)
    assert path is not None
    graph, result = path.graph, []
    for node, gap in zip(path.node.tolist(), path.gap.tolist(), strict=True):
        if graph.on_host[node]:
            result.append("host")
        else:
            table = "copies" if graph.kind[node] == NodeKind.COPY else "kernels"
            name = trace.text(int(trace.rows[table]["name"][graph.row[node]]))
            result.append(name if gap == MISSING else f"before {name}")
    return [name for before, name in pairwise(["", *result]) if name != before]


def check(trace: Trace) -> None:
    """Check properties of every path."""
    path, windows = trace.fact(critical_path), trace.fact(account_windows)
    if path is None:
        return
    for window, (begin, end) in enumerate(zip(windows.starts.tolist(), windows.ends.tolist(), strict=True)):
        mine = path.window == window
        starts, ends = path.starts[mine], path.ends[mine]
        assert (starts[0], ends[-1]) == (begin, end)
        assert (starts[1:] == ends[:-1]).all(), "without a hole and without an overlap"
    assert sum(trace.fact(path_parts).values()) == windows.whole_ns
    assert set(trace.fact(path_parts)) <= set(PARTS)
    graph = path.graph
    assert (replay(graph, unchanged(graph)) == graph.ends).all()
    assert replayed_ns(graph, unchanged(graph)) == windows.whole_ns
    summary = path_summary(trace)
    assert summary is not None
    assert sum(row.total_ns for row in summary.rows) <= windows.whole_ns


class TestKnownAnswers:
    def test_a_device_that_is_behind_bounds_the_step(self) -> None:
        trace, length = run([Op("a", 10, 100), Op("b", 10, 100), Op("c", 10, 100, waits=True)])
        assert names(trace) == ["host", "before k_a", "k_a", "before k_b", "k_b", "before k_c", "k_c", "host"]
        assert trace.fact(path_parts) == {
            "compute": 300 * US,
            "launch": (10 + LATENCY) * US,
            "dependency": 2 * BETWEEN * US,
            "sync": BACK * US,
        }
        assert length == 10 + LATENCY + 300 + 2 * BETWEEN + BACK

    def test_a_host_that_is_behind_bounds_it(self) -> None:
        trace, _ = run([Op("a", 100, 10), Op("b", 100, 10), Op("c", 100, 10, waits=True)])
        assert names(trace) == ["host", "before k_c", "k_c", "host"]

    def test_a_wait_joins_both(self) -> None:
        trace, _ = run([Op("a", 10, 200, waits=True), Op("b", 10, 200, waits=True)])
        assert names(trace) == ["host", "before k_a", "k_a", "host", "before k_b", "k_b", "host"]

    def test_the_backward_thread_carries_the_path_while_the_main_thread_waits(self) -> None:
        builder = TraceBuilder()
        builder.annotation("ProfilerStep#1", 0, 1000)
        builder.step(1, 0, 1000)
        builder.op("forward", 0, 300)
        builder.op("MulBackward0", 310, 900, tid=2, sequence=1, forward_thread=1)
        builder.launched("k", 800, 806, 850, correlation=1, tid=2)
        builder.op("loss", 910, 1000)
        trace = builder.build()
        path = trace.fact(critical_path)
        assert path is not None
        threads = path.graph.thread[path.node].tolist()
        assert [thread for before, thread in pairwise([None, *threads]) if thread != before] == [0, 1, 0]

    def test_work_after_an_event_depends_on_the_other_stream(self) -> None:
        builder = TraceBuilder()
        builder.step(1, 0, 1000)
        builder.op("both", 0, 60)
        builder.launched("producer", 10, 20, 500, correlation=1, stream=7)
        builder.launched("consumer", 30, 505, 900, correlation=2, stream=8)
        builder.call("cudaDeviceSynchronize", 60, 1000, kind=CallKind.SYNC)
        trace = builder.build()
        assert names(trace)[:5] == ["host", "before producer", "producer", "before consumer", "consumer"]

    def test_an_event_binds_to_what_ended_last_and_not_to_the_first_kernel_of_its_stream(self) -> None:
        builder = TraceBuilder()
        builder.step(1, 0, 1000)
        builder.op("all", 0, 60)
        builder.launched("early", 10, 20, 100, correlation=1, stream=7)
        builder.launched("late", 15, 101, 700, correlation=2, stream=7)
        builder.launched("consumer", 30, 704, 900, correlation=3, stream=8)
        builder.call("cudaDeviceSynchronize", 60, 1000, kind=CallKind.SYNC)
        assert names(builder.build())[1:-1] == [
            "before early",
            "early",
            "before late",
            "late",
            "before consumer",
            "consumer",
        ]

    def test_kernels_of_a_graph_hang_on_its_launch(self) -> None:
        builder = TraceBuilder()
        builder.step(1, 0, 1000)
        builder.call("cudaGraphLaunch", 50, 60, kind=CallKind.GRAPH, correlation=1)
        builder.kernel("first", 70, 300, correlation=1)
        builder.kernel("second", 301, 800, correlation=1)
        builder.call("cudaStreamSynchronize", 60, 1000, kind=CallKind.SYNC)
        assert names(builder.build()) == ["host", "before first", "first", "before second", "second", "host"]

    def test_a_kernel_that_was_launched_before_the_recording_hides_nothing(self) -> None:
        builder = TraceBuilder()
        builder.op("op", 0, 100)
        builder.kernel("before", 0, 400)
        builder.launched("own", 50, 401, 900, correlation=1)
        builder.call("cudaDeviceSynchronize", 100, 1000, kind=CallKind.SYNC)
        trace = builder.build()
        check(trace)
        assert names(trace)[-4:] == ["before", "before own", "own", "host"]

    def test_crossing_host_spans_make_no_cycle(self) -> None:
        builder = TraceBuilder()
        builder.step(1, 0, 100)
        builder.python("f", 0, 60)
        builder.python("g", 40, 90)
        builder.op("aten::add", 50, 70)
        builder.launched("k", 55, 58, 80, correlation=1)
        check(builder.build())

    def test_without_a_host_the_path_is_the_devices(self) -> None:
        builder = TraceBuilder(recorded=frozenset({"device_work"}))
        builder.kernel("a", 0, 100)
        builder.kernel("b", 101, 200)
        trace = builder.build()
        assert names(trace) == ["a", "before b", "b"]
        check(trace)

    def test_programs_of_xla_on_the_cpu_are_compute(self) -> None:
        builder = TraceBuilder()
        builder.step(1, 0, 1000)
        builder.annotation("ProfilerStep#1", 0, 1000)
        builder.row("hlo_ops", name=builder.code("dot"), start_ns=100 * US, end_ns=900 * US, encloses=False,
                    asynchronous=False)  # fmt: skip
        assert builder.build().fact(path_parts) == {"compute": 800 * US, "other_host": 200 * US}

    def test_nothing_has_no_path(self) -> None:
        assert TraceBuilder().build().fact(critical_path) is None

    def test_the_name_of_a_step_says_nothing(self) -> None:
        trace, _ = run([Op("a", 10, 100, waits=True)], stall=50)
        summary = path_summary(trace)
        assert summary is not None
        assert [(row.where, row.name) for row in summary.rows[:2]] == [
            ("kernel", "k_a"),
            ("host", "(outside every recorded span)"),
        ]


def leading_to(graph: Graph, node: int) -> set[int]:
    """The node and all that it depends on, over any number of others."""
    found, left = {node}, [node]
    while left:
        before = {int(earlier) for earlier in graph.before[:, left.pop()] if earlier != MISSING} - found
        found |= before
        left += before
    return found


class TestDrawnPrograms:
    @given(OPS, st.sampled_from([0, 20]))
    def test_the_path_is_the_step(self, ops: list[Op], stall: int) -> None:
        check(run(ops, stall=stall)[0])

    @given(OPS)
    def test_it_is_the_longest_chain(self, ops: list[Op]) -> None:
        """Every chain of dependencies that ends the step is tried one by one."""
        graph = run(ops[:8])[0].fact(dependency_graph)
        assert graph is not None
        lengths = graph.ends - graph.starts

        def longest(node: int) -> int:
            chains = [
                longest(int(before)) + int(lag)
                for before, lag in zip(graph.before[:, node], graph.lag[:, node], strict=True)
                if before != MISSING
            ]
            return max(chains, default=int(graph.starts[node])) + int(lengths[node])

        assert longest(int(graph.finish[0])) == graph.ends[graph.finish[0]]

    @given(OPS, st.data())
    def test_slack_is_how_much_longer_a_node_may_take(self, ops: list[Op], data: st.DataObject) -> None:
        graph = run([*ops, Op("end", 5, 4, waits=True)])[0].fact(dependency_graph)  # it ends with all of its work
        assert graph is not None
        spare = slack(graph)
        node = data.draw(st.integers(0, len(graph) - 1))
        change = unchanged(graph)
        change.durations[node] += spare[node]
        assert replayed_ns(graph, change) == graph.windows.whole_ns
        change.durations[node] += 1
        assert replayed_ns(graph, change) == graph.windows.whole_ns + (node in leading_to(graph, int(graph.finish[0])))

    @given(OPS)
    def test_what_is_on_the_path_has_no_slack(self, ops: list[Op]) -> None:
        trace = run(ops)[0]
        path = trace.fact(critical_path)
        assert path is not None
        if not (path.gap == UNKNOWN_GAP).any():
            assert (slack(path.graph)[path.node] == 0).all()


@pytest.mark.corpus
@pytest.mark.parametrize("folder", [pytest.param("kineto", marks=pytest.mark.slow), "nsys_sqlite", "xplane"])
def test_paths_of_recordings_sum_to_their_steps(folder: str, corpus: Path) -> None:
    walked = 0
    for file in corpus_files(folder):
        if "CORRUPT" in file.name or "empty" in file.name:
            continue
        for trace in load_path(file).traces:
            check(trace)
            walked += trace.fact(critical_path) is not None
    assert walked


@settings(max_examples=5)
@given(st.integers(0, 2**16))
def test_touching_works_of_two_streams(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    for stream in (7, 8):
        time = 0.0
        while time < 900:
            length = float(drawn.integers(1, 60))
            builder.kernel("k", time, time + length, stream=stream)
            time += length + float(drawn.integers(0, 3))
    check(builder.build())


@pytest.mark.corpus
def test_a_memory_snapshot_has_no_path(corpus: Path) -> None:
    (trace,) = load_path(corpus / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz").traces
    assert trace.fact(critical_path) is None
