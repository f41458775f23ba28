"""Idle time of a device in the compared window by cause; what no gap explains lies before or behind its work."""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.compare.keys import Key
from perfscope.analyzers.compare.naming import Naming
from perfscope.analyzers.compare.part import Part
from perfscope.analyzers.compare.window import Window
from perfscope.analyzers.facts.gaps import GapCause, gaps
from perfscope.model.intervals import Intervals, covered
from perfscope.model.trace import MISSING, Trace

EDGE = "idle: before the first or behind the last work"
INPUT = "idle: waits for input"
LOOKUP = "idle: lookup of compiled code"
ALLOCATOR = "idle: device memory calls"
CAUSES: dict[GapCause, str] = {
    GapCause.UNKNOWN: "idle: cause not recorded",
    GapCause.DEPENDENCY: "idle: work was queued, waited for other work",
    GapCause.HOST_SYNC: "idle: the host waited for the device",
    GapCause.LAUNCH: "idle: the host launched late",
}


def idle_parts(trace: Trace, window: Window, naming: Naming, device: int, free: Intervals) -> list[Part]:
    """Parts of ``free``, the time in which the device did nothing; they sum to it. ``device``: row of ``devices``.

    A gap that the window cuts keeps each of its causes in proportion, rounded down; its main one has the rest.
    """
    found = trace.fact(gaps)
    rows = np.flatnonzero(found.device == device)
    inside = covered(free, found.start_ns[rows], found.end_ns[rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    parts: list[Part] = []
    keys = naming.of_gaps(found, rows, CAUSES)
    amounts = zip(rows.tolist(), inside.tolist(), (found.end_ns - found.start_ns)[rows].tolist(), keys, strict=True)
    for row, ns, length, (key, example) in amounts:
        left = ns
        for why, minor in ((INPUT, found.input_ns), (LOOKUP, found.compile_lookup_ns), (ALLOCATOR, found.allocator_ns)):
            share = int(minor[row]) * ns // length
            if share:
                parts.append(Part(key=Key(kind="idle", work=why), own_ns=share, calls=0, busy_ns=0, example=example))
                left -= share
        if left:
            calls = int(found.cause[row] == GapCause.HOST_SYNC)
            parts.append(Part(key=key, own_ns=left, calls=calls, busy_ns=left, example=example))
    edge = free.total() - int(inside.sum())
    if edge:
        parts.append(Part(key=Key(kind="idle", work=EDGE), own_ns=edge, calls=0, busy_ns=0, example=MISSING))
    return parts
