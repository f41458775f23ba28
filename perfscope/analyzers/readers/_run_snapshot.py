"""CUDA memory snapshots of a run: put into the trace of the pass they were taken in, or of a failed allocation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfscope.analyzers.readers import torch_memory
from perfscope.analyzers.readers._run_parts import RunPart
from perfscope.analyzers.trace import MISSING, TABLES, Rows, Trace
from perfscope.analyzers.trace.memory_tables import MemoryAction
from perfscope.profiler.errors import DataError

SNAPSHOT_PASS = "memory"  # noqa: S105 (a pass of ours)
"""Name of the recording of the CUDA allocator beside the detail pass; another is of a failed allocation."""

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


def failed_allocations(path: Path, part: RunPart) -> tuple[list[Trace], DataError | None]:
    """Snapshots of a run's allocators as an allocation failed, and why the last damaged one cannot be read."""
    traces: list[Trace] = []
    damaged = None
    for process in part.processes:
        for capture in process.captures:
            if capture.tool == "torch_memory" and capture.pass_name != SNAPSHOT_PASS and capture.artifact is not None:
                try:
                    traces.append(torch_memory.read(path / capture.artifact))
                except DataError as error:
                    damaged = error
                else:
                    mark_failed(traces[-1])
    return traces, damaged


def mark_failed(snapshot: Trace) -> None:
    """Say in the snapshot that an allocation failed when it was taken: without a history nothing in it does.

    How much was asked for is not known then. Of several devices it is not known which one was full, and none is marked.
    """
    events, segments = snapshot.rows["memory"], snapshot.rows["segments"]
    ordinals = np.unique(segments["ordinal"][segments["on_device"]])
    if (events["action"] == MemoryAction.OUT_OF_MEMORY).any() or len(ordinals) != 1:
        return
    last = {
        "time_ns": int(events["time_ns"].max(initial=0)),
        "on_device": True,
        "ordinal": int(ordinals[0]),
        "address": 0,
        "bytes": 0,
        "action": int(MemoryAction.OUT_OF_MEMORY),
    }
    row = Rows(
        TABLES["memory"],
        {column.name: [last.get(column.name, MISSING if column.default is None else column.default)]
         for column in TABLES["memory"].columns if column.name in last or not column.nullable},
    )  # fmt: skip
    joined = {name: np.concatenate((events[name], row[name])) for name in events}
    snapshot.rows["memory"] = Rows(TABLES["memory"], joined)


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
