"""Calls at both ends of a device's idle interval: the launch that ends it and the wait that emptied the queue before.

A wait S belongs to an idle interval if it was on its way when the device ran dry: it began before, and ended between
2 us before the interval and the launch L that ends it. S is looked for on the thread of L, then on the other threads
that launch work, and there only if the thread of L had nothing open when S returned (the main thread waits, then starts
the backward pass, which autograd launches from its own thread). A wait that began while the device was idle did not
cause the idle time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.spans import covering_slices, rows_by_device
from perfscope.analyzers.time.calls import blocking_calls
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, CallKind, Rows, Trace

SYNC_SLACK_NS = 2_000
"""A wait may return this long before the last work's recorded end: host and device clocks agree to about 2 us."""

_NEVER = np.iinfo(np.int64).max


def launch_at(trace: Trace, device: int, times: Int64) -> tuple[Int64, Int64]:
    """Return the call that launched the work starting at each of ``times`` (sorted), and the latest possible launch.

    The call is the first one to begin among those that launched work there, ``MISSING`` if unknown. The second array is
    the earliest begin of a call that launched such work or later work on its stream, because the work itself was
    launched before. ``_NEVER`` if unknown.
    """
    calls = trace.rows["calls"]
    tables = [trace.rows["kernels"], trace.rows["copies"]]
    rows_of = [trace.fact(rows_by_device)[name][device] for name in ("kernels", "copies")]
    here = [rows[table["end_ns"][rows] > table["start_ns"][rows]] for table, rows in zip(tables, rows_of, strict=True)]
    start, stream, launch = (
        np.concatenate([table[column][rows] for table, rows in zip(tables, here, strict=True)]).astype(np.int64)
        for column in ("start_ns", "stream", "call")
    )
    begin = np.where(launch != MISSING, pick(calls["start_ns"], launch), _NEVER)
    by = _earliest_behind(stream, start, begin)
    order = np.lexsort((by, begin, start))
    start, launch, by = start[order], launch[order], by[order]
    first = np.searchsorted(start, times)
    return launch[first], by[first]


def _earliest_behind(stream: Int64, start: Int64, begin: Int64) -> Int64:
    """Per work: the earliest ``begin`` of it and of all that start later on its stream."""
    result = np.full(len(start), _NEVER, np.int64)
    order = np.lexsort((start, stream))
    for rows in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
        result[rows] = np.minimum.accumulate(begin[rows][::-1])[::-1]
    return result


def draining_sync(trace: Trace, gap_start: Int64, launch_begin: Int64, launch_thread: Int64) -> Int64:
    """The wait each host-late gap is charged to: rows of ``calls``, ``MISSING`` without one."""
    calls, waits = trace.rows["calls"], trace.fact(_waits_by_thread)
    launching = trace.fact(_launching_threads)
    result = np.full(len(gap_start), MISSING, np.int64)
    by_thread = np.argsort(launch_thread, kind="stable")
    for thread, rows in waits.items():
        low, high = np.searchsorted(launch_thread, [thread, thread + 1], sorter=by_thread)
        own = by_thread[low:high]
        result[own] = _waited_into(calls, rows, gap_start[own], launch_begin[own])
    left = np.flatnonzero(result == MISSING)
    left = left[np.argsort(gap_start[left], kind="stable")]
    begins = gap_start[left]
    for thread, rows in waits.items():
        if thread not in launching:
            continue
        earliest, latest = calls["start_ns"][rows].min(), calls["end_ns"][rows[-1]] + SYNC_SLACK_NS
        low, high = np.searchsorted(begins, [earliest, latest + 1])
        other = left[low:high]
        other = other[(launch_thread[other] != thread) & (result[other] == MISSING)]
        candidate = _waited_into(calls, rows, gap_start[other], launch_begin[other])
        other, candidate = other[candidate != MISSING], candidate[candidate != MISSING]
        free = covering_slices(trace, launch_thread[other], calls["end_ns"][candidate]) == MISSING
        result[other[free]] = candidate[free]
    return result


def _launching_threads(trace: Trace) -> frozenset[int]:
    """Rows of ``threads`` that launch work."""
    calls = trace.rows["calls"]
    launching = np.isin(calls["kind"], [CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY])
    return frozenset(np.unique(calls["thread"][launching]).tolist())


def _waits_by_thread(trace: Trace) -> dict[int, Int64]:
    """By row of ``threads``, in their order: the calls in which it waits for the device, by their end."""
    calls, blocking = trace.rows["calls"], trace.fact(blocking_calls)
    rows = blocking[np.lexsort((calls["end_ns"][blocking], calls["thread"][blocking]))]
    threads, first = np.unique(calls["thread"][rows], return_index=True)
    ends = [*first[1:].tolist(), len(rows)]
    return {
        thread: rows[low:high]
        for thread, low, high in zip(threads.tolist(), first.tolist(), ends[: len(first)], strict=True)
    }


def _waited_into(calls: Rows, rows: Int64, gap_start: Int64, launch_begin: Int64) -> Int64:
    """Return the wait in ``rows`` (sorted by end) in progress at the gap's start that ended before the launch."""
    starts, ends = calls["start_ns"][rows], calls["end_ns"][rows]
    first = np.searchsorted(ends, gap_start - SYNC_SLACK_NS)
    result = np.full(len(gap_start), MISSING, np.int64)
    for step in (0, 1):  # a short wait may end within the slack, just before the one that covers the gap's start
        index = first + step
        inside = index < len(ends)
        safe = np.where(inside, index, 0)
        fits = inside & (starts[safe] <= gap_start) & (ends[safe] <= launch_begin)
        result = np.where(fits, rows[safe], result)
    return result


def pick(values: npt.NDArray[np.generic], rows: Int64) -> Int64:
    """``values[rows]`` as int64, 0 where the row is ``MISSING``; safe on an empty table."""
    if not len(values):
        return np.zeros(len(rows), np.int64)
    return values[np.maximum(rows, 0)].astype(np.int64)
