"""A counter's pixels hold every sample: lowest and highest agree with counting one by one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.readers.load import load
from perfscope.dashboards.timeline.counters import piece, series_of
from tests.build import TraceBuilder


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(-9, 9)), min_size=1, max_size=30),
    st.lists(st.integers(-10, 700), min_size=2, max_size=10, unique=True),
)
def test_no_sample_is_lost(samples: list[tuple[int, int]], cuts: list[int]) -> None:
    times = np.cumsum([gap for gap, _ in samples])
    values = np.array([value for _, value in samples], float)
    edges = np.array(sorted(cuts))
    low, high = piece(times, values, edges)
    for at, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):  # noqa: RUF007
        before = [value for time, value in zip(times, values, strict=True) if time <= begin]
        inside = [value for time, value in zip(times, values, strict=True) if begin < time <= end]
        held = [*before[-1:], *inside]
        if not held:
            assert math.isnan(low[at])
        else:
            assert (low[at], high[at]) == (min(held), max(held))


def test_counters_by_name() -> None:
    made = TraceBuilder()
    for at, value in ((30, 2.0), (10, 1.0), (20, 5.0)):
        made.row("counters", time_ns=at, name=made.code("power W"), value=value)
    made.row("counters", time_ns=5, name=made.code("Total bytes"), value=9.0)
    found = {one.label: one for one in series_of(made.build())}
    assert found["power W"].times.tolist() == [10, 20, 30]
    assert found["power W"].values.tolist() == [1.0, 5.0, 2.0]
    assert found["Total bytes"].unit == "bytes"


@pytest.mark.corpus
def test_memory_in_use_is_a_counter(corpus: Path) -> None:
    (trace,) = load(corpus / "kineto" / "TraceLens__h100_bert-small.json.gz")
    memory = next(one for one in series_of(trace) if one.label == "memory of cuda:0")
    assert memory.unit == "bytes"
    device = next(one for one in trace.fact(memory_timelines) if one.label == "cuda:0")
    assert memory.values.max() == device.peak()[1]
