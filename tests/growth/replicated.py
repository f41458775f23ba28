"""A trace several times over: copies after each other, or its device work on more devices."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.readers.columns import nesting_order
from perfscope.model.trace import MISSING, Rows, Trace
from perfscope.model.trace.columns import Array

Axis = Literal["time", "streams", "devices", "threads"]

_OF_DEVICES = ("devices", "kernels", "copies", "collectives", "hlo_ops", "memory", "sync_records")
_PAUSE_NS = 1_000
_IDS = ("correlation", "external_id", "sequence", "number", "run_id")


def replicated(trace: Trace, copies: int, axis: Axis = "time") -> Trace:
    """``trace`` repeated ``copies`` times. Only the tables are replicated.

    ``time``, ``streams``, ``threads``: one after another with separate ids, and on separate streams or threads.
    ``devices``: the device work once per device, in parallel; there is one host.
    """
    start, end = trace.span_ns()
    later = 0 if axis == "devices" else end - start + _PAUSE_NS
    if axis == "devices":
        shared = tuple(name for name in trace.rows if name not in _OF_DEVICES)
    else:
        shared = tuple(name for name in ("devices", "threads", "frames") if name != axis)
    strides = {name: 1 + max((int(rows[name].max()) for rows in trace.rows.values() if name in rows and len(rows)),
                             default=0) for name in _IDS}  # fmt: skip
    rows = {}
    for name, table in trace.rows.items():
        if name in shared or not len(table):
            rows[name] = table
            continue
        rows[name] = Rows(table.table, {
            column: np.concatenate([
                _copy(trace, name, column, number, shared=shared, later=later, strides=strides, axis=axis)
                for number in range(copies)
            ]) for column in table
        })  # fmt: skip
    _sort_slices(rows)
    return replace(trace, rows=rows, detail=None, op_graph=None)


def _copy(
    trace: Trace, table: str, column: str, number: int, *, shared: tuple[str, ...], later: int,
    strides: dict[str, int], axis: Axis,
) -> Array:  # fmt: skip
    values = trace.rows[table][column]
    declared = trace.rows[table].table.column(column)
    by = 0
    if column in ("start_ns", "end_ns", "time_ns", "launch_end_ns"):
        by = number * later
    elif column in strides and axis != "devices":
        by = number * strides[column]
    elif declared.refers is not None and declared.refers not in shared:
        by = number * len(trace.rows[declared.refers])
    elif (column == "stream" and axis == "streams") or (column == "ordinal" and axis == "devices"):
        by = number * 1_000
    return np.where(values == MISSING, values, values + by).astype(values.dtype) if by else values


def _sort_slices(rows: dict[str, Rows]) -> None:
    slices = rows["slices"]
    order = nesting_order(slices["thread"], slices["start_ns"], slices["end_ns"])
    new = np.empty(len(order), np.int64)
    new[order] = np.arange(len(order))
    rows["slices"] = slices.take(order)
    for name, table in rows.items():
        moved = {
            column.name: np.where(table[column.name] == MISSING, MISSING, new[table[column.name]])
            for column in table.table.columns
            if column.refers == "slices" and len(table) and len(new)
        }
        if moved:
            rows[name] = table.with_columns(moved)
