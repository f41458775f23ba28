"""The host as one lane: the work of the program's own thread, or of the thread that it waited for.

One thread drives a program. While that thread is in no op and no call, another thread may work for it: autograd runs
the backward pass on a separate thread. The lane follows the work and covers the requested time without gaps.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import nearest_ancestor
from perfscope.analyzers.time import innermost_spans, main_thread
from perfscope.model.intervals import Int64, distinct
from perfscope.model.trace import MISSING, CallKind, SliceKind, Trace
from perfscope.native import library as native_library


class Lane(Struct, frozen=True, kw_only=True):
    """Pieces of host time in order, each beginning at the end of the previous one. Times in ns."""

    bounds: Int64
    """Begin of each piece, then the end of the last one: one more than pieces."""
    thread: np.ndarray
    """Row of ``threads``, int32; ``MISSING`` if no thread is recorded."""
    slice: np.ndarray
    """Row of ``slices``, int32: the innermost host span; ``MISSING`` outside all spans."""
    call: np.ndarray
    """Row of ``calls``, int32: the outermost runtime call; ``MISSING`` outside all calls."""

    def __len__(self) -> int:
        """Number of pieces."""
        return len(self.thread)

    @property
    def starts(self) -> Int64:
        """Begin of each piece."""
        return self.bounds[:-1]

    @property
    def ends(self) -> Int64:
        """End of each piece."""
        return self.bounds[1:]

    def at(self, times: Int64) -> Int64:
        """Return the piece that contains each time; the first or last piece for times outside the lane."""
        return np.clip(np.searchsorted(self.starts, times, side="right") - 1, 0, max(len(self) - 1, 0))


_NO_ROWS = np.empty(0, np.int32)
NO_LANE = Lane(bounds=np.zeros(1, np.int64), thread=_NO_ROWS, slice=_NO_ROWS, call=_NO_ROWS)
"""A lane without pieces."""


def host_lane(trace: Trace, low: int, high: int, cuts: Int64) -> Lane:
    """Return the lane of ``[low, high)`` ns; pieces also end at each of ``cuts``."""
    main = trace.fact(main_thread)
    threads = [main, *(thread for thread in helper_threads(trace) if thread != main)] if main != MISSING else []
    if native_library() is not None:
        return _swept_lane(trace, threads, low, high, cuts)
    spans = {thread: _thread_pieces(trace, thread) for thread in threads}
    joined = [np.array([low, high], np.int64), cuts]
    joined += [np.concatenate((pieces.starts, pieces.ends)) for pieces in spans.values()]
    times = distinct(np.concatenate(joined))
    times = times[(times >= low) & (times <= high)]
    starts = times[:-1]
    thread = np.full(len(starts), main, np.int64)
    inside, call = np.full(len(starts), MISSING, np.int64), np.full(len(starts), MISSING, np.int64)
    open_to_others = np.ones(len(starts), bool)
    for number, pieces in spans.items():
        index = np.searchsorted(pieces.starts, starts, side="right") - 1
        covered = (index >= 0) & (pieces.ends[np.maximum(index, 0)] > starts) if len(pieces) else index >= 0
        index = np.maximum(index, 0)
        works = covered & pieces.works[index] if len(pieces) else covered
        chosen = covered if number == main else works & open_to_others
        thread[chosen], inside[chosen], call[chosen] = number, pieces.slice[index[chosen]], pieces.call[index[chosen]]
        open_to_others &= ~works
    columns = {"thread": thread, "slice": inside, "call": call}
    return _joined(Lane(bounds=times, **{name: column.astype(np.int32) for name, column in columns.items()}), cuts)


def _swept_lane(trace: Trace, threads: list[int], low: int, high: int, cuts: Int64) -> Lane:
    from perfscope.native import sweep

    slices, calls = trace.rows["slices"], trace.rows["calls"]
    works = nearest_ancestor(trace, np.arange(len(slices)), slices["kind"] == SliceKind.OP) != MISSING
    host = sweep.Host(slices["start_ns"], slices["end_ns"], slices["parent"], works, calls["start_ns"], calls["end_ns"])
    ranges = np.searchsorted(slices["thread"], [[thread, thread + 1] for thread in threads]).reshape(-1, 2)
    rows = [
        sweep.Thread(thread, first, last, outermost_calls(trace, thread))
        for thread, (first, last) in zip(threads, ranges.tolist(), strict=True)
    ]
    bounds, thread, inside, call = sweep.lane(host, rows, distinct(cuts), low, high, threads[0] if threads else MISSING)
    return Lane(bounds=bounds, thread=thread, slice=inside, call=call)


def helper_threads(trace: Trace) -> list[int]:
    """Return the threads that work for the program (launch kernels or run the backward pass), most launches first."""
    calls, slices = trace.rows["calls"], trace.rows["slices"]
    launching = np.isin(calls["kind"], [CallKind.KERNEL, CallKind.GRAPH])
    backward = slices["forward_thread"] > 0
    threads = np.concatenate((calls["thread"][launching], slices["thread"][backward]))
    if not len(threads):
        return []
    counts = np.bincount(threads)
    return [int(thread) for thread in np.argsort(-counts, kind="stable") if counts[thread]]


class _Pieces(Struct, frozen=True, kw_only=True):
    """Times at which one thread is inside a span or a call. ``works``: inside an op or a call, not only in Python."""

    starts: Int64
    ends: Int64
    slice: Int64
    call: Int64
    works: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)


def _thread_pieces(trace: Trace, thread: int) -> _Pieces:
    spans, calls = innermost_spans(trace, thread), trace.rows["calls"]
    outer = outermost_calls(trace, thread)
    call_starts, call_ends = calls["start_ns"][outer].astype(np.int64), calls["end_ns"][outer].astype(np.int64)
    times = distinct(np.concatenate((spans.starts, spans.ends, call_starts, call_ends)))
    starts, ends = times[:-1], times[1:]
    inside = _covering(spans.starts, spans.ends, spans.slices, starts)
    call = _covering(call_starts, call_ends, outer, starts)
    is_op = trace.rows["slices"]["kind"] == SliceKind.OP
    works = (call != MISSING) | (nearest_ancestor(trace, inside, is_op) != MISSING)
    filled = (inside != MISSING) | (call != MISSING)
    return _Pieces(
        starts=starts[filled], ends=ends[filled], slice=inside[filled], call=call[filled], works=works[filled]
    )


def outermost_calls(trace: Trace, thread: int) -> Int64:
    """Return the rows of ``calls`` of a thread that have a duration and are in no other call, in order of start."""
    calls = trace.rows["calls"]
    rows = np.flatnonzero((calls["thread"] == thread) & (calls["end_ns"] > calls["start_ns"]))
    rows = rows[np.lexsort((-calls["end_ns"][rows], calls["start_ns"][rows]))]
    ends = calls["end_ns"][rows]
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1])) if len(rows) else ends
    return rows[calls["start_ns"][rows] >= before].astype(np.int64)


def _covering(starts: Int64, ends: Int64, rows: Int64, times: Int64) -> Int64:
    """Return, per time, the row of the disjoint sorted interval that contains it; ``MISSING`` if none does."""
    if not len(starts):
        return np.full(len(times), MISSING, np.int64)
    index = np.searchsorted(starts, times, side="right") - 1
    inside = (index >= 0) & (ends[np.maximum(index, 0)] > times)
    return np.where(inside, rows[np.maximum(index, 0)], MISSING)


def _joined(lane: Lane, cuts: Int64) -> Lane:
    """Merge neighbours with the same thread, span and call, except across a cut."""
    if not len(lane):
        return lane
    begins = np.isin(lane.starts, cuts)
    begins[0] = True
    for column in (lane.thread, lane.slice, lane.call):
        begins[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(begins)
    return Lane(
        bounds=np.append(lane.starts[first], lane.bounds[-1]),
        thread=lane.thread[first],
        slice=lane.slice[first],
        call=lane.call[first],
    )
