"""Comparison of two traces: totals, and every row of every table with a time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from perfscope.model.trace import Trace
from perfscope.plugins.exports.events import fit

TIMED = (
    "slices", "calls", "kernels", "copies", "collectives", "hlo_ops", "memory", "steps", "sync_records", "counters",
)  # fmt: skip
NOT_ROWS = frozenset({"frame", "device_start_ns", "device_end_ns"})
"""Columns that an export leaves out: what points into tables without a time, and marks of steps on devices."""


def totals(trace: Trace) -> dict[str, Any]:
    """Events by kind, ns by device and stream, counters and links."""
    rows = trace.rows
    found: dict[str, Any] = {}
    for table in TIMED:
        found[table] = len(rows[table])
        if "start_ns" in rows[table]:
            found[f"{table} ns"] = int((rows[table]["end_ns"] - rows[table]["start_ns"]).sum())
    for table in ("slices", "calls", "copies"):
        found[f"{table} kinds"] = dict(Counter(rows[table]["kind"].tolist()))
    for table in ("kernels", "copies", "sync_records"):
        held = rows[table]
        ordinals = rows["devices"]["ordinal"][held["device"]] if len(held) else np.empty(0, np.int64)
        lasted = held["end_ns"] - held["start_ns"]
        streams: Counter[tuple[int, int]] = Counter()
        for ordinal, stream, ns in zip(ordinals.tolist(), held["stream"].tolist(), lasted.tolist(), strict=True):
            streams[ordinal, stream] += ns
        found[f"{table} streams"] = dict(streams)
    for table in ("kernels", "copies"):
        found[f"{table} launched"] = int((rows[table]["call"] >= 0).sum())
    names = Counter(fit(trace.strings[code]) for code in rows["counters"]["name"].tolist())
    found["counters by name"] = dict(names)
    found["counters sum"] = float(np.nansum(rows["counters"]["value"])) if len(rows["counters"]) else 0.0
    return found


def comparable_rows(trace: Trace, table: str) -> Counter[tuple[Any, ...]]:
    """Every row of a table as it can be compared: texts decoded, references as start, end and name of their target."""
    rows = trace.rows[table]
    shown = []
    for column in rows.table.columns:
        if column.name in NOT_ROWS:
            continue
        values = rows[column.name]
        if column.text:
            shown.append([None if code < 0 else fit(trace.strings[code]) for code in values.tolist()])
        elif column.refers is not None:
            shown.append([_target(trace, column.refers, row) for row in values.tolist()])
        elif values.dtype.kind == "f":
            shown.append([None if np.isnan(value) else float(value) for value in values])
        else:
            shown.append(values.tolist())
    return Counter(zip(*shown, strict=True))


def _target(trace: Trace, table: str, row: int) -> Any:
    if row < 0:
        return None
    rows = trace.rows[table]
    if table == "threads":
        return tuple(fit(trace.strings[int(rows[name][row])]) for name in ("process", "thread"))
    if table == "devices":
        return int(rows["ordinal"][row])
    return int(rows["start_ns"][row]), int(rows["end_ns"][row]), fit(trace.strings[int(rows["name"][row])])
