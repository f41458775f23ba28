"""Ranges of hardware counters, as the CUPTI range profiler in Kineto wrote them, and the launches they are of.

``{"ph": "X", "cat": "cuda_profiler_range", "name": kernel, "pid": device, "ts": us, "dur": us, "args":
{"dram__bytes_read.sum": 4096, ...}}``

A range is one kernel (``profiler_measure_per_kernel=True``) or a part of the program. Its counters are its arguments,
under any names, so they are read by themselves where there are ranges. Kineto divided the time of the capture evenly
among the ranges: ``ts`` tells their order, and nothing else of it is kept.

Since June 2025 a range carries the correlation id of its launch. Before, it names only its kernel, and launches name
none: the order of both is what joins them. It is sound where each launch is of one kernel of one device and their order
is certain; elsewhere ranges stay alone, with the reason. CUPTI counts kernels one after the other, and a launch returns
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
"""Hardware counters have 64 bits."""

_LONGEST = 25
"""Characters of a whole number that fits 64 bits, with room; longer ones are read as fractions."""


class RangeEvent(NamedTuple):
    """One range."""

    name: str
    start: float
    device: Any
    correlation: int
    counters: list[tuple[str | None, float]]
    """Name and value, NaN where it is no number; one without a name where there are none."""


def counted_ranges(text: bytes) -> list[RangeEvent]:
    """The ranges in an array of events. ``ValueError`` for text that is no such JSON."""
    events = json.loads(text.decode("utf-8", "replace"), strict=False, parse_int=_whole)
    made = []
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or str(event.get("cat")).lower() != CATEGORY:
            continue
        start, length = _time(event.get("ts")), _time(event.get("dur"))
        if start is None or length is None or length < 0:
            continue  # counted as unplaced with the other events
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
    """What a counter showed; NaN for what is no number of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if abs(value) < _LARGEST else math.nan


def joined_ranges(ranges: Columns, calls: Rows, slices: Rows, code: Callable[[str], int]) -> Columns:
    """The table ``kernel_counters``. ``ranges``: rows as read; ``code``: gives a text its code."""
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
    """The call of each range, in its order, and how it is known or why it is not."""
    count, kind = len(correlation), calls["kind"]
    launches = np.flatnonzero(kind == CallKind.KERNEL).astype(np.int32)
    if (correlation != MISSING).any():
        found = Lookup(calls["correlation"], np.argsort(kind <= int(CallKind.MEMSET), kind="stable"))(correlation)
        return found, f"joined by correlation id: {int((found != MISSING).sum()):,} of {count:,} ranges"
    alone = np.full(count, MISSING, np.int32)
    devices, graphs = len(np.unique(device)), int((kind == CallKind.GRAPH).sum())
    if devices > 1:
        return alone, f"not joined: the ranges are of {devices:,} devices, and a launch does not tell its device"
    if graphs:
        return alone, f"not joined: {graphs:,} graph launch{'' if graphs == 1 else 'es'}, each of several kernels"
    if count != len(launches):
        few = ": ranges are of parts of the program, or some were not recorded" if count < len(launches) else ""
        plural = "" if count == 1 else "s"
        return alone, f"not joined: {count:,} range{plural}, but kernels were launched {len(launches):,} times{few}"
    start, end, thread = (calls[name][launches] for name in ("start_ns", "end_ns", "thread"))
    if ((start[1:] < end[:-1]) & (thread[1:] != thread[:-1])).any():
        return alone, "not joined: several threads launched kernels at the same time, so their order is not known"
    return launches, f"joined by order of launch; counts are equal: {count:,} of {count:,}"
