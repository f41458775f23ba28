from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.facts.op_time import op_times, self_time_by_name
from tests.build import TraceBuilder


def test_self_time_is_without_the_ops_inside_and_frames_between_do_not_matter():
    b = TraceBuilder()
    b.annotation("step", 0, 200)
    b.op("outer", 0, 100)
    b.python("f.py(1): f", 10, 60)
    b.op("inner", 20, 50)
    b.op("innermost", 30, 35)
    b.op("inner", 70, 80)
    assert self_time_by_name(b.build()) == {"outer": (60_000, 1), "inner": (35_000, 2), "innermost": (5_000, 1)}


def test_a_trace_without_ops_has_none():
    assert self_time_by_name(TraceBuilder().build()) == {}


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
