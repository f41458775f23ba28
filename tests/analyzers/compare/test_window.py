"""The compared part of a trace, and arithmetic of disjoint spans."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.compare.window import compared_window, cut, inside, without
from perfscope.analyzers.facts.intervals import Intervals, union
from tests.analyzers.compare.two_runs import gpu_run
from tests.build import TraceBuilder

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8).map(
    lambda found: union([start for start, _ in found], [start + length for start, length in found])
)


def moments(spans: Intervals) -> set[int]:
    return {moment for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
            for moment in range(start, end)}  # fmt: skip


@given(SPANS, SPANS)
def test_cut_and_without_are_those_of_sets(first: Intervals, second: Intervals) -> None:
    assert moments(cut(first, second)) == moments(first) & moments(second)
    assert moments(without(first, second)) == moments(first) - moments(second)


@given(SPANS, st.lists(st.integers(-5, 90), max_size=10))
def test_inside_is_that_of_sets(spans: Intervals, times: list[int]) -> None:
    held = moments(spans)
    assert inside(spans, np.array(times, np.int64)).tolist() == [time in held for time in times]


def test_window_is_the_steps() -> None:
    window = compared_window(gpu_run(steps=3))
    assert (window.total_ns, window.steps, window.per) == (3_000_000, 3, "step")


def test_window_holds_the_work_that_the_last_step_left_running() -> None:
    made = TraceBuilder()
    made.step(0, 0, 100)
    made.launched("late", 90, 95, 160, correlation=1)
    made.launched("of_nobody", 110, 200, 300, correlation=2)
    window = compared_window(made.build())
    assert window.total_ns == 160_000
    assert window.host.total() == 100_000


def test_without_steps_it_is_the_span_of_the_devices() -> None:
    made = TraceBuilder()
    made.op("aten::mm", 0, 500)
    made.launched("k", 10, 100, 150, correlation=1)
    made.launched("k", 20, 200, 260, correlation=2)
    window = compared_window(made.build())
    assert (window.total_ns, window.steps, window.per) == (160_000, 1, "trace")


def test_between_steps_counts_only_while_their_work_runs() -> None:
    made = TraceBuilder()
    made.step(0, 0, 100)
    made.step(1, 300, 400)
    made.launched("late", 90, 95, 160, correlation=1)
    made.launched("between", 200, 210, 220, correlation=2)
    window = compared_window(made.build())
    assert window.total_ns == 260_000
    assert (window.spans.starts // 1000).tolist() == [0, 300]
    assert (window.spans.ends // 1000).tolist() == [160, 400]
