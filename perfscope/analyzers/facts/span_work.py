"""The device work launched inside host spans, and how much of it nothing else hides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.model.intervals import Intervals, intersection_total, union
from perfscope.model.trace import Trace

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTime:
    """Time of some device work, in ns."""

    sum_ns: int
    """Sum of durations."""
    exposed_ns: int
    """While it was the only work on its device: removing it frees no more than this."""
    kernels: int
    """Kernels and copies."""

    def __add__(self, other: WorkTime) -> WorkTime:
        return WorkTime(
            sum_ns=self.sum_ns + other.sum_ns,
            exposed_ns=self.exposed_ns + other.exposed_ns,
            kernels=self.kernels + other.kernels,
        )


NO_WORK = WorkTime(sum_ns=0, exposed_ns=0, kernels=0)


def work_time(trace: Trace, spans: npt.ArrayLike) -> WorkTime:
    """Device work launched inside the given rows of ``slices`` (nested rows count once)."""
    total = NO_WORK
    for table in ("kernels", "copies"):
        total += time_of(trace, table, work_inside(trace, table, np.asarray(spans, np.int64)))
    return total


def time_of(trace: Trace, table: str, rows: Rows) -> WorkTime:
    """Time of rows of ``kernels`` or ``copies``."""
    work = trace.rows[table]
    exposed = 0
    for device in np.unique(work["device"][rows]).tolist():
        chosen = rows[work["device"][rows] == device]
        exposed += intersection_total(
            trace.fact(unshared_time)[device], union(work["start_ns"][chosen], work["end_ns"][chosen])
        )
    return WorkTime(sum_ns=int((work["end_ns"] - work["start_ns"])[rows].sum()), exposed_ns=exposed, kernels=len(rows))


def work_inside(trace: Trace, table: str, spans: Rows) -> Rows:
    """Rows of ``kernels`` or ``copies`` whose op is one of ``spans`` or lies inside one; sorted, each once."""
    order, ops = trace.fact(_work_by_op)[table]
    firsts, lasts = np.searchsorted(ops, spans), np.searchsorted(ops, trace.fact(subtree_ends)[spans])
    pieces = [order[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
    return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)


def subtree_ends(trace: Trace) -> Rows:
    """By row of ``slices``: one past the last row inside it; those rows stand right behind it."""
    slices = trace.rows["slices"]
    ends = np.arange(1, len(slices) + 1)
    for thread in np.unique(slices["thread"]):
        first, last = np.searchsorted(slices["thread"], [thread, thread + 1])
        reach = first + np.searchsorted(slices["start_ns"][first:last], slices["end_ns"][first:last], side="left")
        ends[first:last] = np.maximum(ends[first:last], reach)
    return ends


def unshared_time(trace: Trace) -> dict[int, Intervals]:
    """By device: when exactly one piece of work (kernel, copy, memset) runs on it."""
    found = {}
    for device in range(len(trace.rows["devices"])):
        starts, ends = [], []
        for table in ("kernels", "copies"):
            work = trace.rows[table]
            on_device = work["device"] == device
            starts.append(work["start_ns"][on_device])
            ends.append(work["end_ns"][on_device])
        times = np.concatenate((*starts, *ends))
        change = np.repeat([1, -1], [sum(map(len, starts)), sum(map(len, ends))])
        order = np.lexsort((change, times))  # at one moment, what ends leaves before the next begins
        times, running = times[order], np.cumsum(change[order])
        alone = running[:-1] == 1
        found[device] = union(times[:-1][alone], times[1:][alone])
    return found


def _work_by_op(trace: Trace) -> dict[str, tuple[Rows, Rows]]:
    """By table: its rows ordered by op, and that op for each."""
    found = {}
    for table in ("kernels", "copies"):
        ops = trace.rows[table]["op"].astype(np.int64)
        order = np.argsort(ops, kind="stable")
        found[table] = (order, ops[order])
    return found
