"""Why a device was idle: every gap between its work is attributed, in integer ns, and the parts sum to idle.

For a gap ``[g0, g1)`` let K be the work that starts at ``g1`` and L the call that launched it.

1. L is not recorded (it lay before the window, or was lost): *dependency* if work behind K on the same
   stream was launched by ``g0``, for a stream keeps the order of its launches; else *unknown*.
2. L began at or before ``g0``: the work was queued, the device waited for another stream, an event or
   its own front end: *dependency*.
3. L began after ``g0``: the host was late. If a call S that waits for the device was on its way when
   the device ran dry (began by ``g0``, ended between ``g0 - 2 us`` and the start of L), the gap is
   *host sync*, charged to S; else it is *launch*.

S is looked for on L's thread, then on the other threads that launch work, and there only if L's thread
had nothing open when S returned (the main thread waits, then starts the backward pass, which autograd
launches from a thread of its own). A wait that began when the device was idle already did not
cause the idle time and is not charged.

Of a gap in which the host was late, the time L's thread spent in a data loader is *input* whatever
drained the device, and of a *launch* gap the time in compiled-code lookup is *compile lookup* and the
time in device memory calls *allocator*.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time.calls import blocking_calls
from perfscope.analyzers.time.device_time import device_busy
from perfscope.analyzers.time.spans import (
    allocator_spans,
    compile_lookup_spans,
    covering_slices,
    input_spans,
    rows_by_device,
)
from perfscope.model.intervals import Int64, Intervals, covered, merge
from perfscope.model.trace import MISSING, CallKind, Rows, Trace

SYNC_SLACK_NS = 2_000
"""A wait may return this long before the last work's recorded end: host and device clocks agree to about 2 us."""

_NEVER = np.iinfo(np.int64).max


class GapCause(IntEnum):
    """Why the device was idle."""

    UNKNOWN = 0
    DEPENDENCY = 1
    HOST_SYNC = 2
    LAUNCH = 3


class Gaps(Struct, frozen=True, kw_only=True):
    """One entry a gap, all devices, as equally long arrays. Times in ns on the trace's clock."""

    device: Int64
    """Row of ``devices``."""
    start_ns: Int64
    end_ns: Int64
    cause: npt.NDArray[np.uint8]
    """``GapCause``."""
    launch: Int64
    """Row of ``calls``: the call that ended the gap; ``MISSING`` if unknown."""
    sync: Int64
    """Row of ``calls``: the wait that the gap is charged to; ``MISSING`` if none."""
    input_ns: Int64
    """Time of the gap in which the launching thread was in a data loader (host late gaps only)."""
    compile_lookup_ns: Int64
    """Time of a launch gap in the lookup of compiled code, outside data loaders."""
    allocator_ns: Int64
    """Time of a launch gap in device memory calls, outside the two above."""

    def __len__(self) -> int:
        """Number of gaps."""
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64:
        """Length of each gap."""
        return self.end_ns - self.start_ns

    def charged_ns(self, cause: GapCause) -> Int64:
        """Per gap: its length without the input part if it has that cause, else 0."""
        return np.where(self.cause == cause, self.duration_ns - self.input_ns, 0)

    def totals(self, device: int | None = None) -> dict[str, int]:
        """Sum by reason in ns, of one device or of all; the values sum to the idle time exactly."""
        chosen = np.ones(len(self), bool) if device is None else self.device == device
        parts = {
            "unknown": self.charged_ns(GapCause.UNKNOWN),
            "dependency": self.charged_ns(GapCause.DEPENDENCY),
            "host_sync": self.charged_ns(GapCause.HOST_SYNC),
            "launch": self.charged_ns(GapCause.LAUNCH) - self.compile_lookup_ns - self.allocator_ns,
            "input": self.input_ns,
            "compile_lookup": self.compile_lookup_ns,
            "allocator": self.allocator_ns,
        }
        return {reason: int(values[chosen].sum()) for reason, values in parts.items()}


def gaps(trace: Trace) -> Gaps:
    """Every idle gap between the first and the last work of each device, attributed."""
    busy = trace.fact(device_busy)
    per_device = [(device, spans) for device, spans in sorted(busy.items()) if len(spans.starts) > 1]
    device = _joined([np.full(len(spans.starts) - 1, number) for number, spans in per_device])
    start = _joined([spans.ends[:-1] for _, spans in per_device])
    end = _joined([spans.starts[1:] for _, spans in per_device])
    launched = [launch_at(trace, number, spans.starts[1:]) for number, spans in per_device]
    launch = _joined([launch for launch, _ in launched])
    queued = _joined([positions for _, positions in launched]) <= start

    calls = trace.rows["calls"]
    known = launch != MISSING
    begin = np.where(known, pick(calls["start_ns"], launch), 0)
    thread = np.where(known, pick(calls["thread"], launch), MISSING)
    late = known & (begin > start)
    sync = np.full(len(start), MISSING, np.int64)
    sync[late] = draining_sync(trace, start[late], begin[late], thread[late])
    cause = np.select(
        [~known & ~queued, ~late, sync != MISSING],
        [int(GapCause.UNKNOWN), int(GapCause.DEPENDENCY), int(GapCause.HOST_SYNC)],
        int(GapCause.LAUNCH),
    ).astype(np.uint8)

    # What the host did before L began, while the device was idle.
    until = np.where(late, np.minimum(begin, end), start)
    free = np.where(cause == GapCause.LAUNCH, until, start)
    fetching = input_spans(trace)
    fetching_or_lookup = _joined_by_thread(fetching, compile_lookup_spans(trace))
    any_of_them = _joined_by_thread(fetching_or_lookup, allocator_spans(trace))
    nested = [_time_in(spans, thread, start, free) for spans in (fetching, fetching_or_lookup, any_of_them)]
    return Gaps(
        device=device,
        start_ns=start,
        end_ns=end,
        cause=cause,
        launch=launch,
        sync=sync,
        input_ns=_time_in(fetching, thread, start, until),
        compile_lookup_ns=nested[1] - nested[0],
        allocator_ns=nested[2] - nested[1],
    )


def launch_at(trace: Trace, device: int, times: Int64) -> tuple[Int64, Int64]:
    """Of the work that starts exactly at each of ``times`` (sorted): the call, and by when it was launched.

    The call is the earliest begun one of those that launched work there, ``MISSING`` if none is known. The
    second array is the earliest begin of a call that launched such work or work behind it on its stream:
    the work itself was launched no later. ``_NEVER`` if none is known.
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
    """The wait each host-late gap is charged to: rows of ``calls``, ``MISSING`` where there is none."""
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
    """Of ``rows`` (sorted by end) the wait that was on its way at the gap's start and ended before the launch."""
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


def _time_in(spans: dict[int, Intervals], thread: Int64, start: Int64, end: Int64) -> Int64:
    """How much of each ``[start, end)`` its thread spent in ``spans``."""
    inside = np.zeros(len(start), np.int64)
    for number, intervals in spans.items():
        chosen = thread == number
        inside[chosen] = covered(intervals, start[chosen], end[chosen])
    return inside


def _joined_by_thread(first: dict[int, Intervals], second: dict[int, Intervals]) -> dict[int, Intervals]:
    return {
        thread: merge(*(spans[thread] for spans in (first, second) if thread in spans)) for thread in {*first, *second}
    }


def pick(values: npt.NDArray[np.generic], rows: Int64) -> Int64:
    """``values[rows]`` as int64, 0 where the row is ``MISSING``; safe on an empty table."""
    if not len(values):
        return np.zeros(len(rows), np.int64)
    return values[np.maximum(rows, 0)].astype(np.int64)


def _joined(parts: list[npt.NDArray[np.generic]]) -> Int64:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
