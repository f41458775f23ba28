"""Device work below host spans, against a brute-force count of every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.facts.span_work import subtree_ends, time_of, work_time
from tests.build import TraceBuilder


def test_work_of_nested_ops_counts_once_and_that_of_the_next_op_does_not():
    t = TraceBuilder()
    t.op("aten::linear", 0, 10, external_id=1)
    t.op("aten::addmm", 2, 8, external_id=2)
    t.op("aten::relu", 10, 12, external_id=3)
    t.kernel("gemm", 20, 30, external_id=2)
    t.copy("Memcpy DtoD", 30, 31, external_id=1)
    t.kernel("relu", 31, 40, external_id=3)
    trace = t.build()
    assert subtree_ends(trace).tolist() == [2, 2, 3]
    found = work_time(trace, [0, 1])
    assert (found.sum_ns, found.exposed_ns, found.kernels) == (11_000, 11_000, 2)


def test_time_under_other_work_is_not_exposed():
    t = TraceBuilder()
    t.op("aten::mul", 0, 5, external_id=1)
    t.kernel("mul", 10, 20, external_id=1)
    t.kernel("ncclAllReduce", 14, 30, stream=9, communication=True)
    found = work_time(t.build(), [0])
    assert (found.sum_ns, found.exposed_ns) == (10_000, 4_000)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 25), st.integers(0, 8), st.integers(0, 1)), min_size=1, max_size=12),
    st.integers(0, 2**12 - 1),
)
def test_exposed_time_equals_a_count_of_every_unit(work: list[tuple[int, int, int]], chosen_bits: int):
    t = TraceBuilder()
    for number, (start, length, device) in enumerate(work):
        t.kernel(f"k{number}", start, start + length, device=device)
    trace = t.build()
    chosen = np.array([i for i in range(len(work)) if chosen_bits >> i & 1], np.int64)
    alone = 0
    for device in (0, 1):
        for unit in range(40):
            running = [i for i, (s, n, d) in enumerate(work) if d == device and s <= unit < s + n]
            alone += len(running) == 1 and running[0] in chosen
    assert time_of(trace, "kernels", chosen).exposed_ns == alone * 1000
