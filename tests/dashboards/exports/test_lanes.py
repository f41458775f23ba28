"""Spans on lanes: what a viewer with a stack a track makes of them is what was put in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.dashboards.exports.lanes import MOST_NESTED, lanes, nest, sequence
from tests.dashboards.exports.built import random_spans


def replayed(start: np.ndarray, end: np.ndarray) -> list[tuple[int, int]]:
    """(row, end) of each span as a viewer reads it: in time and written order, an end closes the last begun."""
    rows, ends = sequence(start, end)
    times = np.where(ends, end[rows], start[rows])
    assert (np.diff(times) >= 0).all()
    stack: list[int] = []
    found = []
    for row, closes, time in zip(rows.tolist(), ends.tolist(), times.tolist(), strict=True):
        if closes:
            found.append((stack.pop(), time))
        else:
            stack.append(row)
    assert not stack
    return sorted(found)


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_every_lane_reads_back_as_it_was(seed: int, count: int) -> None:
    start, end = random_spans(seed, count)
    lane = lanes(start, end)
    for one in np.unique(lane):
        mine = np.flatnonzero(lane == one)
        assert nest(start[mine], end[mine])
        assert replayed(start[mine], end[mine]) == [(row, int(end[mine][row])) for row in range(len(mine))]


@given(st.integers(0, 10**6), st.integers(2, 30))
def test_what_nests_stays_on_one_lane(seed: int, count: int) -> None:
    start, end = random_spans(seed, count)
    crossing = any(a < c < b < d for a, b in zip(start, end, strict=True) for c, d in zip(start, end, strict=True))
    assert nest(start, end) is not crossing
    assert bool(lanes(start, end).any()) is crossing


def test_many_overlaps_take_as_many_lanes_as_overlap_at_once() -> None:
    start = np.arange(5_000, dtype=np.int64)
    lane = lanes(start, start + 101)  # each overlaps the hundred before it
    assert 101 <= len(np.unique(lane)) <= 101 + MOST_NESTED
    for one in np.unique(lane):
        mine = start[lane == one]
        assert (np.diff(mine) >= 101).all()


@pytest.mark.parametrize("count", [0, 1])
def test_few_spans(count: int) -> None:
    start = np.zeros(count, np.int64)
    assert lanes(start, start).tolist() == [0] * count
    assert len(sequence(start, start)[0]) == 2 * count
