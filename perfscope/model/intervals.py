"""Unions, differences and overlaps of half-open integer intervals, in numpy, exact.

A *disjoint* set is a pair of int64 arrays (starts, ends), sorted, not touching, none empty.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perfscope.native import library as native_library

Int64 = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """A disjoint set of half-open intervals ``[start, end)`` in ns."""

    starts: Int64
    ends: Int64

    def total(self) -> int:
        """Summed length in ns."""
        return int((self.ends - self.starts).sum())


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def distinct(values: npt.ArrayLike) -> Int64:
    """Each value once, in order. ``np.unique`` hashes integers, which takes fifty times as long where most differ."""
    ordered = np.sort(np.asarray(values, np.int64))
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


_SPARSE = 16
"""Maximum range of integers per value for which they are counted, not sorted."""


def numbered(values: npt.NDArray[np.integer[Any]]) -> tuple[Int64, Int64]:
    """``np.unique(values, return_inverse=True)`` of integers; dense values are counted, not sorted."""
    low = int(values.min()) if len(values) else 0
    span = int(values.max()) - low + 1 if len(values) else 0
    if span > _SPARSE * len(values) + 1024:
        return np.unique(values, return_inverse=True)
    offset = values - low
    seen = np.zeros(span, bool)
    seen[offset] = True
    found = np.flatnonzero(seen)
    number = np.empty(span, np.int64)
    number[found] = np.arange(len(found))
    return found + low, number[offset]


_LARGEST = 2**62


def distinct_rows(*columns: npt.NDArray[np.integer[Any]]) -> tuple[Int64, Int64]:
    """First row of each distinct combination of values, sorted by these, and the combination of every row.

    Shapes (k,) and (n,). As ``np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)``, but each
    column is numbered first, so that one number per row is sorted instead of the row.
    """
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, number = numbered(column)
        if len(values) and int(code.max()) >= _LARGEST // len(values):
            code = numbered(code)[1]
        code = code * len(values) + number
    numbers, kind = numbered(code)
    first = np.empty(len(numbers), np.int64)
    first[kind[::-1]] = np.arange(len(code))[::-1]
    return first, kind


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Disjoint union of any intervals. Touching ones are joined, empty ones vanish."""
    begin, finish = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    if not len(begin):
        return EMPTY
    if native_library() is not None:
        from perfscope.native import sweep

        return Intervals(*sweep.union(begin, finish))
    filled = finish > begin
    begin, finish = begin[filled], finish[filled]
    if not len(begin):
        return EMPTY
    order = np.argsort(begin, kind="stable")
    begin, finish = begin[order], finish[order]
    reach = np.maximum.accumulate(finish)
    opens = np.concatenate(([True], begin[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(begin[opens], reach[closes])


def complement(busy: Intervals, start: int, end: int) -> Intervals:
    """The gaps of ``busy`` within ``[start, end)``."""
    starts = np.concatenate(([start], np.clip(busy.ends, start, end)))
    ends = np.concatenate((np.clip(busy.starts, start, end), [end]))
    keep = ends > starts
    return Intervals(starts[keep], ends[keep])


def covered(busy: Intervals, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64:
    """Number of ns of each given interval that are inside ``busy``.

    Only the part of ``busy`` between the first start and the last end is read.
    """
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    if not len(starts):
        return np.zeros(0, np.int64)
    low = int(np.searchsorted(busy.ends, starts.min(), side="right"))
    high = int(np.searchsorted(busy.starts, ends.max(), side="left"))
    if low == high:
        return np.zeros(len(starts), np.int64)
    busy = Intervals(busy.starts[low:high], busy.ends[low:high])
    if native_library() is not None:
        from perfscope.native import sweep

        return sweep.covered(busy, starts, ends)
    return _covered_before(busy, ends) - _covered_before(busy, starts)


def _covered_before(busy: Intervals, times: Int64) -> Int64:
    if not len(busy.starts):
        return np.zeros(len(times), np.int64)
    before = np.concatenate(([0], np.cumsum(busy.ends - busy.starts)))
    index = np.searchsorted(busy.starts, times, side="right")
    last_end = busy.ends[np.maximum(index - 1, 0)]
    overshoot = np.where(index > 0, np.maximum(last_end - times, 0), 0)
    return np.asarray(before[index] - overshoot, np.int64)


def intersection_total(first: Intervals, second: Intervals) -> int:
    """ns that lie in both sets."""
    return int(covered(first, second.starts, second.ends).sum())


def difference_total(first: Intervals, second: Intervals) -> int:
    """ns of ``first`` outside ``second``."""
    return first.total() - intersection_total(first, second)


def merge(*sets: Intervals) -> Intervals:
    """Union of disjoint sets."""
    if not sets:
        return EMPTY
    return union(np.concatenate([part.starts for part in sets]), np.concatenate([part.ends for part in sets]))


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """The parts that lie in both sets."""
    if not len(first.starts) or not len(second.starts):
        return EMPTY
    if native_library() is not None:
        from perfscope.native import sweep

        return Intervals(*sweep.intersection(first, second))
    lowest = np.searchsorted(second.ends, first.starts, side="right")
    beyond = np.searchsorted(second.starts, first.ends, side="left")
    counts = np.maximum(beyond - lowest, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    other = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(lowest, counts)
    starts = np.maximum(first.starts[owner], second.starts[other])
    ends = np.minimum(first.ends[owner], second.ends[other])
    return union(starts, ends)


def difference(first: Intervals, second: Intervals) -> Intervals:
    """The parts of ``first`` outside ``second``."""
    if not len(first.starts) or not len(second.starts):
        return first
    if native_library() is not None:
        from perfscope.native import sweep

        return Intervals(*sweep.difference(first, second))
    low, high = int(first.starts[0]), int(first.ends[-1])
    return intersection(first, complement(second, low, high))


def by_largest_remainder(amounts: Int64, divisor: int, whole: int | None = None) -> Int64:
    """Divide amounts by ``divisor`` into integers that sum to ``whole``, by default the rounded quotient of their sum.

    Every result is the rounded down or the rounded up quotient; the largest remainders are rounded up, of equal ones
    the first. ``whole``: at least the sum of the rounded down, at most that of the rounded up quotients.
    """
    share, rest = amounts // divisor, amounts % divisor
    if whole is None:
        whole = (2 * int(amounts.sum()) + divisor) // (2 * divisor)
    order = np.argsort(-rest, kind="stable")[: max(whole - int(share.sum()), 0)]
    share[order] += 1
    return np.asarray(share, np.int64)
