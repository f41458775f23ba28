"""Steps in which calls and device work are counted: each from its beginning until its work is done."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time import device_times, step_windows, steps_work, warm_windows
from perfscope.model.intervals import EMPTY, Int64, Intervals, complement, merge, union
from perfscope.model.trace import MISSING, Trace


class Window(Struct, frozen=True, kw_only=True):
    """The part of a trace in which calls and work are counted."""

    spans: Intervals
    """Disjoint, ns on the trace's clock: the steps, and behind the last one the work it left running."""
    steps: int
    """What ``spans`` holds; 1 where the trace shows none."""
    per: str
    """``step``, or ``trace`` where no step is known."""
    host: Intervals
    """The steps themselves, on the host; the same as ``spans`` where no step is known."""

    @property
    def total_ns(self) -> int:
        """Length of ``spans``."""
        return self.spans.total()

    def began_inside(self, starts: Int64) -> npt.NDArray[np.bool_]:
        """Which of these moments on the host lie in the steps."""
        return inside(self.host, starts)


def work_in_window(trace: Trace, table: str, window: Window) -> npt.NDArray[np.bool_]:
    """Which rows of ``kernels`` or ``copies`` are the window's, on all devices: of the steps that launched them.

    Where the launch was not recorded, or no step is known, those that began in the window. Shape (n,).
    """
    work = trace.rows[table]
    counted = inside(window.spans, work["start_ns"])
    known = work["call"] != MISSING
    if window.per == "step" and known.any():
        counted[known] = window.began_inside(trace.rows["calls"]["start_ns"][work["call"][known]])
    return counted


def inside(spans: Intervals, moments: Int64) -> npt.NDArray[np.bool_]:
    """Which moments lie in the disjoint ``spans``; shape (n,)."""
    if not len(spans.starts):
        return np.zeros(len(moments), bool)
    index = np.searchsorted(spans.starts, moments, side="right") - 1
    return np.asarray((index >= 0) & (moments < spans.ends[np.maximum(index, 0)]), bool)


def cut(spans: Intervals, to: Intervals) -> Intervals:
    """The part of the disjoint ``spans`` that lies in the disjoint ``to``."""
    if not len(spans.starts) or not len(to.starts):
        return EMPTY
    first, last = int(spans.starts[0]), int(spans.ends[-1])
    outside = merge(complement(spans, first, last), complement(to, first, last))
    return complement(outside, first, last)


def without(spans: Intervals, taken: Intervals) -> Intervals:
    """The part of the disjoint ``spans`` that lies outside the disjoint ``taken``."""
    if not len(spans.starts):
        return EMPTY
    return cut(spans, complement(taken, int(spans.starts[0]), int(spans.ends[-1])))


def compared_window(trace: Trace) -> Window:
    """Each step from its beginning until its work is done; without steps the device's span, or all of the trace.

    What lies between two steps is left out, unless work of a step still runs there.
    """
    steps = trace.fact(step_windows)
    if not steps.count:
        spans = _whole(trace)
        return Window(spans=spans, steps=1, per="trace", host=spans)
    return _of_steps(trace, np.ones(steps.count, bool))


def account_window(trace: Trace) -> Window:
    """The steps that the account is of: as ``compared_window``, without those that compiled and outliers."""
    windows, steps = trace.fact(warm_windows), trace.fact(step_windows)
    if windows.numbers:
        return _of_steps(trace, np.isin(steps.numbers, windows.numbers))
    spans = union(windows.starts, windows.ends)
    return Window(spans=spans, steps=1, per="trace", host=spans)


def _of_steps(trace: Trace, chosen: npt.NDArray[np.bool_]) -> Window:
    """``chosen``: mask over the steps."""
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
    """From the first to the last work of any device; where there is no device, of the trace."""
    devices = [device_time for device_time in trace.fact(device_times) if device_time.span_ns]
    if devices:
        return union([min(device.start_ns for device in devices)], [max(device.end_ns for device in devices)])
    start, end = trace.span_ns()
    return union([start], [end])


def _work_ends(trace: Trace, starts: Int64, ends: Int64) -> Int64:
    """Per step: its end, or that of the last work that was launched in it where that is later."""
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
