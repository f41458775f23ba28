from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.facts.nesting import covering_slices, lineage, nearest_ancestor
from perfscope.analyzers.trace import MISSING, SliceKind
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
