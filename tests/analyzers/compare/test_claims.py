"""Each moment belongs to one row: exact sums under any overlap."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.compare.claims import by_largest_remainder, claim_first, claim_innermost
from perfscope.analyzers.facts.intervals import union
from tests.build import TraceBuilder

ROWS = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 30)), min_size=1, max_size=12)


@given(ROWS, ROWS)
def test_rows_and_what_is_left_sum(free_rows: list[tuple[int, int]], rows: list[tuple[int, int]]) -> None:
    free = union([start for start, _ in free_rows], [start + length for start, length in free_rows])
    starts = np.array([start for start, _ in rows], np.int64)
    ends = starts + np.array([length for _, length in rows], np.int64)
    own, left = claim_first(free, starts, ends)
    assert own.sum() + left.total() == free.total()
    assert (own >= 0).all()
    assert (own <= ends - starts).all()


def test_of_overlapping_rows_the_first_has_the_shared_time() -> None:
    own, left = claim_first(union([0], [100]), np.array([20, 10]), np.array([60, 40]))
    assert own.tolist() == [20, 30]
    assert left.total() == 50


def test_a_moment_goes_to_the_innermost_span_and_through_spans_that_are_not_wanted() -> None:
    made = TraceBuilder()
    made.op("outer", 0, 100)
    made.python("f.py(1): f", 10, 50)
    made.op("inner", 20, 40)
    trace = made.build()
    slices = trace.rows["slices"]
    ops = slices["kind"] == 0
    rows, own, left = claim_innermost(trace, union([0], [120_000]), 0, ops)
    assert {trace.text(int(slices["name"][row])): ns for row, ns in zip(rows, own, strict=True)} == {
        "outer": 80_000, "inner": 20_000,
    }  # fmt: skip
    assert left.total() == 20_000


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(1, 50))
def test_shares_sum_to_the_rounded_whole(amounts: list[int], divisor: int) -> None:
    shares = by_largest_remainder(np.array(amounts, np.int64), divisor)
    whole = sum(amounts)
    assert shares.sum() == (2 * whole + divisor) // (2 * divisor)
    assert all(abs(share - amount / divisor) < 1 for share, amount in zip(shares.tolist(), amounts, strict=True))
