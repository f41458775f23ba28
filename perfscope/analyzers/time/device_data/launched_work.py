"""Run times of the device work that was launched in each step.

The host may run ahead of the device: work of a step then ends after the step's mark on the host, and work of earlier
steps still runs when the first recorded step begins. Each kernel and copy belongs to the step in which its launch
began. Work without a recorded launch belongs to the step of the previous work in its stream, because a stream keeps the
order of its launches; before the first known launch of a stream, it was launched before the recording.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

BEFORE = -1
"""Position of work that was launched before the first step."""

UNKNOWN = -2
"""Position of work in a stream without any recorded launch."""

LEAST_LINKED = 0.5
"""Minimum share of the device time in streams with recorded launches; with less, steps cannot be assigned by launches.
"""


class LaunchedWork(Struct, frozen=True, kw_only=True):
    """Times of the steps' work on the devices, in ns on the trace's clock."""

    before_ns: int
    """End of the work that was launched before the first step; ``MISSING`` without such work."""
    begins: Int64
    """Begin of the first work per step, in order of the steps; ``MISSING`` for a step without work."""
    ends: Int64
    """End of the last work per step; ``MISSING`` for a step without work."""
    launched_ns: int
    """Begin of the first launch in a step."""


def launched_work(trace: Trace, starts: Int64, ends: Int64) -> LaunchedWork | None:
    """Return the work launched in steps from ``starts`` to ``ends`` (ns, sorted).

    ``None`` if launches are insufficient.
    """
    before = MISSING
    first = np.full(len(starts), np.iinfo(np.int64).max)
    last = np.full(len(starts), MISSING, np.int64)
    known_ns = whole_ns = 0
    calls, launched = trace.rows["calls"], np.iinfo(np.int64).max
    for table in ("kernels", "copies"):
        work = trace.rows[table]
        step = _step_of(trace, table, starts, ends)
        lengths = work["end_ns"] - work["start_ns"]
        known_ns += int(lengths[step != UNKNOWN].sum())
        whole_ns += int(lengths.sum())
        early = work["end_ns"][step == BEFORE]
        before = max(before, int(early.max())) if len(early) else before
        mine = np.flatnonzero((step >= 0) & (step < len(starts)))
        np.minimum.at(first, step[mine], work["start_ns"][mine])
        np.maximum.at(last, step[mine], work["end_ns"][mine])
        by = work["call"][mine]
        launched = min(launched, int(calls["start_ns"][by[by != MISSING]].min(initial=launched)))
    if not whole_ns or known_ns < LEAST_LINKED * whole_ns or not (last != MISSING).any():
        return None
    return LaunchedWork(
        before_ns=before,
        begins=np.where(last == MISSING, MISSING, first),
        ends=last,
        launched_ns=launched,
    )


def _step_of(trace: Trace, table: str, starts: Int64, ends: Int64) -> Int64:
    """Return the index of each row's step; ``len(starts)`` for work launched between steps or after the last."""
    work, calls = trace.rows[table], trace.rows["calls"]
    if not len(work) or not len(calls):
        return np.full(len(work), UNKNOWN, np.int64)
    order = np.lexsort((work["start_ns"], work["stream"], work["device"]))
    call, device, stream = (work[name][order] for name in ("call", "device", "stream"))
    linked = call != MISSING
    begin = calls["start_ns"][np.maximum(call, 0)]
    step = np.searchsorted(starts, begin, side="right") - 1
    step[(step >= 0) & (begin >= ends[np.maximum(step, 0)])] = len(starts)
    changes = np.concatenate(([True], (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])))
    group = np.cumsum(changes) - 1
    latest = np.maximum.accumulate(np.where(linked, np.arange(len(call)), -1))
    filled = np.where((latest >= 0) & (group[latest] == group), step[latest], BEFORE)
    result = np.empty(len(call), np.int64)
    result[order] = np.where(np.bincount(group, weights=linked)[group] > 0, filled, UNKNOWN)
    return result
