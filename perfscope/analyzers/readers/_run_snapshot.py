"""A CUDA memory snapshot of a run, put into the trace of the pass that it was taken in."""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.trace import MISSING, TABLES, Rows, Trace

_ELSEWHERE = ("op", "thread")
"""Columns of events that point at tables of the snapshot's own, which are not taken."""


def attach_snapshot(trace: Trace, snapshot: Trace) -> None:
    """What the allocator held goes into ``trace``, and its events in place of those of the profiler.

    Both tell of the same device memory on the same clock; the allocator's own events also have sizes as asked for,
    streams, Python stacks, and the blocks from before. Events without times stay out. Host memory stays the profiler's.
    """
    offset = len(trace.strings)
    trace.strings.extend(snapshot.strings)
    for name in ("frames", "segments", "held"):
        trace.rows[name] = _moved(snapshot.rows[name], offset)
    trace.recorded |= {"memory_state"}
    events = snapshot.rows["memory"]
    if not len(events) or snapshot.source.events_only:
        return
    ours, theirs = trace.rows["memory"], _moved(events, offset)
    host = ours.take(~ours["on_device"])
    joined = {name: np.concatenate((host[name], theirs[name])) for name in ours}
    order = np.argsort(joined["time_ns"], kind="stable")
    trace.rows["memory"] = Rows(TABLES["memory"], joined).take(order)
    trace.recorded |= {"memory"}


def _moved(rows: Rows, offset: int) -> Rows:
    """Rows of the snapshot with texts as codes of the trace they go to."""
    moved = {}
    for column in rows.table.columns:
        values = rows[column.name]
        if column.text:
            values = np.where(values == MISSING, MISSING, values + offset)
        elif column.name in _ELSEWHERE:
            values = np.full(len(values), MISSING, values.dtype)
        moved[column.name] = values
    return Rows(rows.table, moved)
