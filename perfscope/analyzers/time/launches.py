"""How far the host runs ahead of each device: delay from launch call to start, and the queue it makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

SHORT_DELAY_NS = 10_000
"""A launch on an idle device starts in 3 to 8 us; below 10 us nothing was queued in front of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDelay:
    """Launches of one device. Of a graph launch only the first kernel counts."""

    device: int
    launches: int
    median_ns: int
    """From the start of the launch call to the start of its first kernel."""
    unqueued: int
    """Launches that started within ``SHORT_DELAY_NS``: the device had nothing else to do."""
    mean_queue: float
    """Launched and not yet started work, averaged over the device's span (Little: sum of delays / span)."""


def launch_delays(trace: Trace) -> dict[int, LaunchDelay]:
    """Per row of ``devices`` that has launches with a known call. Delays below zero (clock skew) count as 0."""
    kernels, calls = trace.rows["kernels"], trace.rows["calls"]
    found = {}
    for device in range(len(trace.rows["devices"])):
        on_device = kernels["device"] == device
        linked = on_device & (kernels["call"] != MISSING)
        if not linked.any():
            continue
        order = np.argsort(kernels["start_ns"][linked], kind="stable")
        call, first = np.unique(kernels["call"][linked][order], return_index=True)
        start = kernels["start_ns"][linked][order][first]
        delay = np.maximum(start - calls["start_ns"][call], 0)
        span = int(kernels["end_ns"][on_device].max() - kernels["start_ns"][on_device].min())
        found[device] = LaunchDelay(
            device=device,
            launches=len(call),
            median_ns=int(np.median(delay)),
            unqueued=int((delay < SHORT_DELAY_NS).sum()),
            mean_queue=float(delay.sum() / span) if span else 0.0,
        )
    return found


# Pairs of short kernels that follow each other on a busy device, and what merging each would save at most.


SHORT_NS = 10_000
"""A kernel below this spends a fifth or more of its time filling and draining the device."""

RAMP_NS = 2_000
"""Duration of an empty kernel as profilers record it is 1 to 2 us: nobody gets below it by computing less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortPairs:
    """One entry a pair, by its second kernel."""

    kernel: Int64
    """Row of ``kernels``: the second of the pair."""
    gap_ns: Int64
    """Time between the two, in which the device was idle although the second was queued."""
    saved_ns: Int64
    """Gap plus ramp: ``min(RAMP_NS, duration)`` of the second kernel."""


def short_pairs(trace: Trace, device: int) -> ShortPairs:
    """Pairs on one device (row of ``devices``).

    Two compute kernels below ``SHORT_NS``, neighbours in the order of start of all work of the device, on one
    stream, nothing else running when the second starts, and the second launched before the first ended.
    Kernels without a known launch are left out: whether they were queued is not known.
    """
    tables = [trace.rows["kernels"], trace.rows["copies"]]
    here = [np.flatnonzero(table["device"] == device) for table in tables]
    start, end, stream = (
        np.concatenate([table[column][rows] for table, rows in zip(tables, here, strict=True)])
        for column in ("start_ns", "end_ns", "stream")
    )
    row = np.concatenate([here[0], np.full(len(here[1]), MISSING)]).astype(np.int64)
    order = np.lexsort((end, start))
    start, end, stream, row = start[order], end[order], stream[order], row[order]
    if len(row) < 2:
        nothing = np.empty(0, np.int64)
        return ShortPairs(kernel=nothing, gap_ns=nothing, saved_ns=nothing)

    kernels, calls = tables[0], trace.rows["calls"]
    is_kernel = row != MISSING
    short = is_kernel & (end - start < SHORT_NS)
    short[is_kernel] &= ~kernels["communication"][row[is_kernel]]
    call = np.full(len(row), MISSING, np.int64)
    call[is_kernel] = kernels["call"][row[is_kernel]]
    launched = calls["start_ns"][np.maximum(call, 0)] if len(calls) else np.zeros(len(row), np.int64)
    reach = np.maximum.accumulate(end)
    paired = (
        short[:-1]
        & short[1:]
        & (stream[:-1] == stream[1:])
        & (reach[:-1] <= start[1:])
        & (call[1:] != MISSING)
        & (launched[1:] <= end[:-1])
    )
    gap = (start[1:] - reach[:-1])[paired]
    duration = (end - start)[1:][paired]
    return ShortPairs(kernel=row[1:][paired], gap_ns=gap, saved_ns=gap + np.minimum(RAMP_NS, duration))
