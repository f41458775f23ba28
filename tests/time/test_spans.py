from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.spans.rows import (
    covering_slices,
    lineage,
    nearest_ancestor,
    op_times,
    subtree_ends,
    time_of,
    work_time,
)
from perfscope.model.trace import MISSING, SliceKind
from tests.build import TraceBuilder


def _names(trace, rows):
    return [trace.text(int(trace.rows["slices"]["name"][row])) if row != MISSING else None for row in rows]


def test_the_innermost_span_covers_a_moment_on_its_own_thread_only():
    b = TraceBuilder()
    b.op("outer", 0, 100)
    b.op("inner", 10, 20)
    b.op("other thread", 0, 100, tid=2)
    trace = b.build()
    thread, other = trace.rows["slices"]["thread"][0], trace.rows["slices"]["thread"][-1]
    moments = np.array([5, 10, 19, 20, 100]) * 1000
    assert _names(trace, covering_slices(trace, [thread] * 5, moments)) == ["outer", "inner", "inner", "outer", None]
    assert _names(trace, covering_slices(trace, [other], [15_000])) == ["other thread"]


def test_a_moment_before_every_span_has_none():
    b = TraceBuilder()
    b.op("op", 10, 20)
    trace = b.build()
    assert covering_slices(trace, [0], [9_999]).tolist() == [MISSING]


def test_nearest_ancestor_counts_the_row_itself_and_keeps_missing():
    b = TraceBuilder()
    b.annotation("step", 0, 100)
    b.op("op", 10, 90)
    b.python("frame", 20, 80)
    trace = b.build()
    is_op = trace.rows["slices"]["kind"] == SliceKind.OP
    assert nearest_ancestor(trace, [2, 1, 0, MISSING], is_op).tolist() == [1, 1, MISSING, MISSING]
    assert _names(trace, lineage(trace, 2)) == ["frame", "op", "step"]


_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 2)), max_size=12)


@given(_SPANS, st.integers(-1, 90), st.integers(1, 2))
def test_covering_equals_a_search_over_all_spans_that_nest(spans, moment, tid):
    b = TraceBuilder()
    kept: list[tuple[int, int, int]] = []
    for start, length, thread in spans:
        end = start + length
        crosses = any(
            (t == thread and (s < start < e < end or start < s < end < e)) or (s, e, t) == (start, end, thread)
            for s, e, t in kept
        )
        if not crosses:
            kept.append((start, end, thread))
            b.op(f"{start}-{end}", start, end, tid=thread)
    b.op("anchor 1", 100, 101, tid=1)
    b.op("anchor 2", 100, 101, tid=2)
    trace = b.build()
    covering = [(e - s, f"{s}-{e}") for s, e, t in kept if t == tid and s <= moment < e]
    expected = min(covering)[1] if covering else None
    assert _names(trace, covering_slices(trace, [b.thread(tid)], [moment * 1000])) == [expected]


def test_self_time_is_without_the_ops_inside_and_frames_between_do_not_matter():
    b = TraceBuilder()
    b.annotation("step", 0, 200)
    b.op("outer", 0, 100)
    b.python("f.py(1): f", 10, 60)
    b.op("inner", 20, 50)
    b.op("innermost", 30, 35)
    b.op("inner", 70, 80)
    trace = b.build()
    times = trace.fact(op_times)
    assert list(zip(_names(trace, times.row), times.self_ns.tolist(), strict=True)) == [
        ("outer", 60_000), ("inner", 25_000), ("innermost", 5_000), ("inner", 10_000),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=10))
def test_self_times_sum_to_the_time_in_outermost_ops(spans):
    b = TraceBuilder()
    kept: list[tuple[int, int]] = []
    for start, length in spans:
        end = start + length
        if not any(s < start < e < end or start < s < end < e or (s, e) == (start, end) for s, e in kept):
            kept.append((start, end))
            b.op("op", start, end)
    b.op("last", 100, 110)
    covered = {moment for start, end in kept for moment in range(start, end)}
    assert b.build().fact(op_times).total_ns() == (len(covered) + 10) * 1000


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


@settings(max_examples=40, deadline=None)
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
