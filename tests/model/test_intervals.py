"""Interval sets against brute force: one flag a nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.model.intervals import Intervals, complement, covered, difference_total, intersection_total, merge, union

SIZE = 60
drawn = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted), max_size=12)


def flags(pairs: list[list[int]]) -> np.ndarray:
    """One flag a nanosecond that lies in any of the intervals."""
    found = np.zeros(SIZE, bool)
    for start, end in pairs:
        found[start:end] = True
    return found


def made(pairs: list[list[int]]) -> Intervals:
    return union([start for start, _ in pairs], [end for _, end in pairs])


@given(drawn)
def test_union_is_disjoint_sorted_and_covers_the_same(pairs: list[list[int]]) -> None:
    found = made(pairs)
    assert (found.starts < found.ends).all()
    assert (found.starts[1:] > found.ends[:-1]).all()
    assert (flags(list(map(list, zip(*found, strict=True)))) == flags(pairs)).all()
    assert found.total() == flags(pairs).sum()


@given(drawn, drawn)
def test_pairs_of_sets(first: list[list[int]], second: list[list[int]]) -> None:
    a, b = flags(first), flags(second)
    assert intersection_total(made(first), made(second)) == (a & b).sum()
    assert difference_total(made(first), made(second)) == (a & ~b).sum()
    assert merge(made(first), made(second)).total() == (a | b).sum()


@given(drawn, st.integers(0, SIZE), st.integers(0, SIZE))
def test_complement_is_the_rest_of_the_window(pairs: list[list[int]], low: int, high: int) -> None:
    low, high = sorted((low, high))
    gaps = complement(made(pairs), low, high)
    assert gaps.total() == (~flags(pairs)[low:high]).sum()
    assert (gaps.starts < gaps.ends).all()


@given(drawn, drawn)
def test_covered_counts_each_interval(pairs: list[list[int]], asked: list[list[int]]) -> None:
    busy = flags(pairs)
    found = covered(made(pairs), [start for start, _ in asked], [end for _, end in asked])
    assert found.tolist() == [int(busy[start:end].sum()) for start, end in asked]
