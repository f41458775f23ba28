"""Ranges of hardware counters from the CUPTI range profiler in Kineto, and their launches.

``{"ph": "X", "cat": "cuda_profiler_range", "name": kernel, "pid": device, "ts": us, "dur": us, "args":
{"dram__bytes_read.sum": 4096, ...}}``

A range is one kernel (``profiler_measure_per_kernel=True``) or a part of the program. Its counters are its arguments,
with arbitrary names, so they are read by themselves if there are ranges. Kineto divided the time of the capture evenly
among the ranges: ``ts`` gives their order and nothing else.

Since June 2025 a range has the correlation id of its launch. Before, it has only the name of its kernel, and launches
have none, so the order of both joins them. This is correct if each launch is one kernel of one device and the order is
certain; otherwise ranges stay alone, with the reason. CUPTI counts kernels one after the other, and a launch returns
when its kernel was counted, so launches of several threads are in order unless they overlap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from perfscope.analyzers.readers.columns import Columns, Lookup, op_above, parent_of_call, reorder
from perfscope.model.trace import CallKind, Rows
from perfscope.model.trace.columns import MISSING, Array

CATEGORY = "cuda_profiler_range"

_NO_COUNTERS = frozenset({"correlation", "External id", "external id", "device", "stream", "Ev Idx"})
"""Arguments that any event may have."""

_LARGEST = 2.0**64
"""Upper bound of a counter; hardware counters have 64 bits."""

_LONGEST = 25
"""Maximum characters of a 64-bit integer, with room; longer texts are read as fractions."""


class RangeEvent(NamedTuple):
    """One range."""

    name: str
    start: float
    device: Any
    correlation: int
    counters: list[tuple[str | None, float]]
    """Name and value, NaN if it is not a number; one entry without a name if there are no counters."""


def counted_ranges(text: bytes) -> list[RangeEvent]:
    """Return the ranges in an array of events. ``ValueError`` for text that is not such JSON."""
    events = json.loads(text.decode("utf-8", "replace"), strict=False, parse_int=_whole)
    made = []
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or str(event.get("cat")).lower() != CATEGORY:
            continue
        start, length = _time(event.get("ts")), _time(event.get("dur"))
        if start is None or length is None or length < 0:
            continue  # It counts as unplaced with the other events.
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        correlation = args.get("correlation")
        counters: list[tuple[str | None, float]] = [
            (_text(name), counter_value(value)) for name, value in args.items() if name not in _NO_COUNTERS
        ]
        made.append(
            RangeEvent(
                name=_text(event.get("name", "")),
                start=start,
                device=args.get("device", event.get("pid")),
                correlation=correlation if isinstance(correlation, int) and 0 < correlation < 2**63 else MISSING,
                counters=counters or [(None, math.nan)],
            )
        )
    return made


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) < _LONGEST else float(digits)


def _time(value: Any) -> float | None:
    try:
        time = float(value)
    except (TypeError, ValueError):
        return None
    return time if math.isfinite(time) else None


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def counter_value(value: Any) -> float:
    """Return the value of a counter; NaN if it is not a 64-bit number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if abs(value) < _LARGEST else math.nan


def joined_ranges(ranges: Columns, calls: Rows, slices: Rows, code: Callable[[str], int]) -> Columns:
    """Return the table ``kernel_counters``. ``ranges``: rows as read; ``code``: returns the code of a text."""
    reorder(ranges, np.lexsort((ranges.pop("start"), ranges["ordinal"])))
    begins = ranges.pop("begins")
    number = np.cumsum(begins) - 1
    correlation = ranges.pop("correlation")
    launch, basis = _launches(correlation[begins], ranges["ordinal"][begins], calls)
    call = launch[number]
    return {
        **ranges,
        "number": number,
        "call": call,
        "op": op_above(slices, parent_of_call(calls, call)),
        "basis": np.full(len(number), code(basis), np.int32),
    }


def _launches(correlation: Array, device: Array, calls: Rows) -> tuple[Array, str]:
    """Return the call of each range, in its order, and how the join was made or why it failed."""
    count, kind = len(correlation), calls["kind"]
    launches = np.flatnonzero(kind == CallKind.KERNEL).astype(np.int32)
    if (correlation != MISSING).any():
        found = Lookup(calls["correlation"], np.argsort(kind <= int(CallKind.MEMSET), kind="stable"))(correlation)
        return found, f"joined by correlation id: {int((found != MISSING).sum()):,} of {count:,} ranges"
    alone = np.full(count, MISSING, np.int32)
    devices, graphs = len(np.unique(device)), int((kind == CallKind.GRAPH).sum())
    if devices > 1:
        return alone, f"not joined: the ranges are of {devices:,} devices, and a launch does not record its device"
    if graphs:
        return alone, f"not joined: {graphs:,} graph launch{'' if graphs == 1 else 'es'}, each of several kernels"
    if count != len(launches):
        few = ": ranges are of parts of the program, or some were not recorded" if count < len(launches) else ""
        plural = "" if count == 1 else "s"
        return alone, f"not joined: {count:,} range{plural}, but kernels were launched {len(launches):,} times{few}"
    start, end, thread = (calls[name][launches] for name in ("start_ns", "end_ns", "thread"))
    if ((start[1:] < end[:-1]) & (thread[1:] != thread[:-1])).any():
        return alone, "not joined: several threads launched kernels at the same time, so their order is unknown"
    return launches, f"joined by order of launch; counts are equal: {count:,} of {count:,}"
