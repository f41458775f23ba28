"""Steps in which calls and device work are counted, each from its beginning until its work is done."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time import device_times, step_windows, steps_work, warm_windows
from perfscope.model.intervals import EMPTY, Int64, Intervals, complement, merge, union
from perfscope.model.trace import MISSING, Trace


class Window(Struct, frozen=True, kw_only=True):
    """Part of a trace in which calls and work are counted."""

    spans: Intervals
    """Disjoint intervals, ns on the trace's clock: the steps, extended by the work that the last one left running."""
    steps: int
    """Number of steps in ``spans``; 1 if steps are unknown."""
    per: str
    """``step``, or ``trace`` if steps are unknown."""
    host: Intervals
    """Steps on the host; equal to ``spans`` if steps are unknown."""

    @property
    def total_ns(self) -> int:
        """Length of ``spans``, ns."""
        return self.spans.total()

    def began_inside(self, starts: Int64) -> npt.NDArray[np.bool_]:
        """Return the mask of moments on the host inside the steps."""
        return inside(self.host, starts)


def work_in_window(trace: Trace, table: str, window: Window) -> npt.NDArray[np.bool_]:
    """Return the mask of rows of ``kernels`` or ``copies`` on all devices that the steps launched. Shape (n,).

    If a launch or the steps are unknown, rows that began in the window are included.
    """
    work = trace.rows[table]
    counted = inside(window.spans, work["start_ns"])
    known = work["call"] != MISSING
    if window.per == "step" and known.any():
        counted[known] = window.began_inside(trace.rows["calls"]["start_ns"][work["call"][known]])
    return counted


def inside(spans: Intervals, moments: Int64) -> npt.NDArray[np.bool_]:
    """Return the mask of moments inside the disjoint ``spans``; shape (n,)."""
    if not len(spans.starts):
        return np.zeros(len(moments), bool)
    index = np.searchsorted(spans.starts, moments, side="right") - 1
    return np.asarray((index >= 0) & (moments < spans.ends[np.maximum(index, 0)]), bool)


def cut(spans: Intervals, to: Intervals) -> Intervals:
    """Return the intersection of the disjoint ``spans`` and ``to``."""
    if not len(spans.starts) or not len(to.starts):
        return EMPTY
    first, last = int(spans.starts[0]), int(spans.ends[-1])
    outside = merge(complement(spans, first, last), complement(to, first, last))
    return complement(outside, first, last)


def without(spans: Intervals, taken: Intervals) -> Intervals:
    """Return the part of the disjoint ``spans`` outside the disjoint ``taken``."""
    if not len(spans.starts):
        return EMPTY
    return cut(spans, complement(taken, int(spans.starts[0]), int(spans.ends[-1])))


def compared_window(trace: Trace) -> Window:
    """Return each step from its beginning until its work is done; without steps, the device's span or the whole trace.

    Time between two steps is left out, unless work of a step still runs then.
    """
    steps = trace.fact(step_windows)
    if not steps.count:
        spans = _whole(trace)
        return Window(spans=spans, steps=1, per="trace", host=spans)
    return _of_steps(trace, np.ones(steps.count, bool))


def account_window(trace: Trace) -> Window:
    """Return the steps of the account: ``compared_window`` without steps that compiled and outliers."""
    windows, steps = trace.fact(warm_windows), trace.fact(step_windows)
    if windows.numbers:
        return _of_steps(trace, np.isin(steps.numbers, windows.numbers))
    spans = union(windows.starts, windows.ends)
    return Window(spans=spans, steps=1, per="trace", host=spans)


def _of_steps(trace: Trace, chosen: npt.NDArray[np.bool_]) -> Window:
    """Return the window of the steps in the mask ``chosen``."""
    steps = trace.fact(step_windows)
    order = np.argsort(steps.starts, kind="stable")
    starts, ends = steps.starts[order].astype(np.int64), steps.ends[order].astype(np.int64)
    until, kept = _work_ends(trace, starts, ends), chosen[order]
    return Window(
        spans=union(starts[kept], until[kept]),
        steps=int(kept.sum()),
        per="step",
        host=union(starts[kept], ends[kept]),
    )


def _whole(trace: Trace) -> Intervals:
    """Return the span of all device work; without a device, the span of the trace."""
    devices = [device_time for device_time in trace.fact(device_times) if device_time.span_ns]
    if devices:
        return union([min(device.start_ns for device in devices)], [max(device.end_ns for device in devices)])
    start, end = trace.span_ns()
    return union([start], [end])


def _work_ends(trace: Trace, starts: Int64, ends: Int64) -> Int64:
    """Return the later of each step's end and the end of the last work that it launched."""
    result = ends.copy()
    calls = trace.rows["calls"]
    for table in ("kernels", "copies"):
        work = trace.rows[table]
        known = np.flatnonzero(work["call"] != MISSING)
        if not len(known):
            continue
        begin = calls["start_ns"][work["call"][known]]
        step = np.searchsorted(starts, begin, side="right") - 1
        mine = (step >= 0) & (begin < ends[np.maximum(step, 0)])
        np.maximum.at(result, step[mine], work["end_ns"][known[mine]])
    compiled = trace.fact(steps_work)
    if compiled is not None and len(compiled.steps) == len(starts):
        return np.maximum(result, [step.end_ns for step in compiled.steps])
    if compiled is not None:  # which execution is of which step is not known: all of it is theirs together
        result[0] = max(int(result[0]), compiled.end_ns)
    return result
