"""Cost of host time outside compiled code: on a CPU that time, else the accelerator's idle time due to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import WORK_TABLES, Window, removed_time, time_of
from perfscope.analyzers.time import blocking_calls, device_busy, step_windows, whole_ns
from perfscope.analyzers.torch_compile.frames import compile_spans
from perfscope.model.finding import Removed
from perfscope.model.intervals import Int64, Intervals, complement, covered, union
from perfscope.model.trace import CallKind, SliceKind, Trace

HOST_READS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2"})
"""Ops whose result the host needs before it can continue."""

_LAUNCHING = (CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)


class EagerCost(Struct, frozen=True, kw_only=True):
    """Cost of some host time over the whole trace, ns."""

    cost_ns: int
    """Upper bound of the saving. If an accelerator's work was recorded: its idle time from the host time to the next
    work, and the time of work launched in it while nothing else ran; else the host time itself.
    """
    host_ns: int
    syncs: int
    """Number of times the host waited for a value in it."""
    sync_wait_ns: int
    """Time of the waiting calls; 0 without an accelerator."""
    on_device: bool
    removes: tuple[Removed, ...]


def compiling(trace: Trace) -> Intervals:
    """Return when something was compiled according to the log, on the trace's clock."""
    log = trace.compile_log
    return compile_spans(trace, log.compiles if log is not None else ())


def steady_ns(trace: Trace) -> int:
    """Return ``whole_ns`` without compiling in the recorded steps: the reference time of a cost of every step.

    A step that compiles may last as long as a thousand others. Compiling is the cost of other rules and must not hide
    this one.
    """
    steps, busy = trace.fact(step_windows), trace.fact(compiling)
    inside = int(covered(busy, steps.starts, steps.ends).sum()) if steps.count else 0
    return max(0, whole_ns(trace) - inside)


def eager_cost(trace: Trace, windows: Sequence[Window]) -> EagerCost:
    """Return the cost of some windows, without compiling in them. Windows may touch but not overlap on one thread."""
    windows = _without_compiling(trace, windows)
    on_device = "device_work" in trace.recorded
    host_ns = sum(window.end_ns - window.start_ns for window in windows)
    syncs, waited = _syncs(trace, windows, on_device=on_device)
    return EagerCost(
        cost_ns=_device_ns(trace, windows) if on_device else _host_time(windows).total(),
        host_ns=host_ns,
        syncs=syncs,
        sync_wait_ns=waited,
        on_device=on_device,
        removes=_removed(trace, windows),
    )


def _removed(trace: Trace, windows: Sequence[Window]) -> tuple[Removed, ...]:
    """Return their host time, the waits that begin in them, and the device work launched in them."""
    inside = _launches_in(trace, windows)
    work = (
        Removed(table=table, rows=np.flatnonzero(np.isin(trace.rows[table]["call"], inside))) for table in WORK_TABLES
    )
    return (removed_time(_host_time(windows)), Removed(table="waits", rows=_waits_in(trace, windows)), *work)


def _host_time(windows: Sequence[Window]) -> Intervals:
    return union([window.start_ns for window in windows], [window.end_ns for window in windows])


def _waits_in(trace: Trace, windows: Sequence[Window]) -> Int64:
    """Return the rows of ``calls`` that wait and begin in the windows."""
    calls, rows = trace.rows["calls"], trace.fact(blocking_calls)
    return np.asarray(rows[_inside(windows, calls["thread"][rows], calls["start_ns"][rows])])


def _launches_in(trace: Trace, windows: Sequence[Window]) -> Int64:
    """Return the rows of ``calls`` that launch work in the windows."""
    calls = trace.rows["calls"]
    return np.flatnonzero(_inside(windows, calls["thread"], calls["start_ns"]) & np.isin(calls["kind"], _LAUNCHING))


def _without_compiling(trace: Trace, windows: Sequence[Window]) -> list[Window]:
    """Cut the windows where something is compiled, because the first run after a break compiles the rest."""
    busy = trace.fact(compiling)
    result = []
    for window in windows:
        free = complement(busy, window.start_ns, window.end_ns)
        for start, end in zip(free.starts.tolist(), free.ends.tolist(), strict=True):
            result.append(Window(thread=window.thread, start_ns=start, end_ns=end))
    return result


def _device_ns(trace: Trace, windows: Sequence[Window]) -> int:
    """Return the largest loss of a device: its idle time due to the windows, and their work while nothing else runs."""
    inside = _launches_in(trace, windows)
    waits = np.sort(trace.rows["calls"]["start_ns"][trace.fact(blocking_calls)])
    worst = 0
    for device, busy in trace.fact(device_busy).items():
        lost = _idle_for(trace, device, busy, windows, waits)
        for table in WORK_TABLES:
            work = trace.rows[table]
            mine = (work["device"] == device) & np.isin(work["call"], inside)
            lost += time_of(trace, table, np.flatnonzero(mine)).exposed_ns
        worst = max(worst, lost)
    return worst


def _idle_for(trace: Trace, device: int, busy: Intervals, windows: Sequence[Window], waits: Int64) -> int:
    """Return the idle time from each window to the first work launched after it, each moment counted once.

    In a window in which the host waits for the device the queue runs empty, so all idle time counts. Otherwise the host
    is late by at most the length of the window.
    """
    if not len(busy.starts):
        return 0
    idle = complement(busy, int(busy.starts[0]), int(busy.ends[-1]))
    launched, began = _launches(trace, device)
    total, reached = 0, 0
    for window in sorted(windows, key=lambda window: window.start_ns):
        behind = int(np.searchsorted(launched, window.end_ns))
        until = int(began[behind]) if behind < len(began) else window.end_ns
        begin = max(window.start_ns, reached)
        if until <= begin:
            continue
        lost = int(covered(idle, [begin], [until])[0])
        syncs = np.searchsorted(waits, window.end_ns) > np.searchsorted(waits, window.start_ns)
        total += lost if syncs else min(lost, window.end_ns - window.start_ns)
        reached = until
    return total


def _launches(trace: Trace, device: int) -> tuple[Int64, Int64]:
    """Return when each work of a device was launched, ascending, and when it began."""
    launched, began = [], []
    for table in WORK_TABLES:
        work = trace.rows[table]
        rows = np.flatnonzero((work["device"] == device) & (work["call"] >= 0))
        launched.append(trace.rows["calls"]["start_ns"][work["call"][rows]])
        began.append(work["start_ns"][rows])
    times, starts = np.concatenate(launched), np.concatenate(began)
    order = np.argsort(times, kind="stable")
    return times[order], starts[order]


def _syncs(trace: Trace, windows: Sequence[Window], *, on_device: bool) -> tuple[int, int]:
    if on_device:
        calls, mine = trace.rows["calls"], _waits_in(trace, windows)
        return len(mine), int((calls["end_ns"][mine] - calls["start_ns"][mine]).sum())
    slices = trace.rows["slices"]
    names = [code for code, text in enumerate(trace.strings) if text in HOST_READS]
    reads = np.flatnonzero((slices["kind"] == SliceKind.OP) & np.isin(slices["name"], names))
    return int(_inside(windows, slices["thread"][reads], slices["start_ns"][reads]).sum()), 0


def _inside(windows: Sequence[Window], threads: Int64, times: Int64) -> np.ndarray:
    """Mask of the times that are in one of the windows, on its thread."""
    result = np.zeros(len(times), bool)
    for thread in {window.thread for window in windows}:
        begun = sorted((window.start_ns, window.end_ns) for window in windows if window.thread == thread)
        starts, ends = (np.array(part, np.int64) for part in zip(*begun, strict=True))
        positions = np.searchsorted(starts, times, side="right") - 1
        result |= (threads == thread) & (positions >= 0) & (times < ends[np.maximum(positions, 0)])
    return result
