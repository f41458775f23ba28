"""Implausible device data, and the analyses that they prevent.

- Kernels of one stream that overlap: a stream runs one launch after the other, so their durations are wrong (ROCm).
  Kernels of one launch of a graph may overlap, and programmatic launches overlap by a few us.
- Launches without a kernel or copy: the profiler got no device activity.
- Work that runs after the steps while the device was idle in them with that work queued: its times are wrong, or
  another process used the device.
- Device work that begins before its launch: the clocks of device and host disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.analyzers.time.device_data.launched_work import launched_work
from perfscope.model.intervals import Int64, covered, union
from perfscope.model.trace import MISSING, CallKind, Trace
from perfscope.model.units import format_ns, format_share

DoubtKind = Literal["overlap", "no_device_work", "outside_steps", "clocks"]

OVERLAP_SHARE = 0.05
"""Share of the kernel time with overlaps from which durations are implausible. Programmatic launches overlap by less:
0.6 % in an eager decode step on B200.
"""

LEAST_OVERLAPS = 3
"""Minimum number of overlapping kernels: one or two may be programmatic launches of a short recording."""
FEW_SHARE = 0.25
"""Share of the kernel time from which fewer overlapping kernels suffice."""

OUTSIDE_SHARE = 0.5
"""Share of the work launched in the steps that runs after them from which its times are implausible."""

QUEUED_IDLE_SHARE = 0.5
"""Share of the time from their first launch to their end in which the device was idle, required as well. A host that
runs ahead keeps the device busy.
"""

LEAST_QUEUED_NS = 1_000_000
"""Minimum delay of queued work: an idle device begins it within 5 to 50 us."""

CLOCK_SLACK_NS = 2_000
"""Allowed difference between the clocks of device and host, about 2 us."""

CLOCK_SHARE = 0.05
"""Share of the mean step by which clocks may disagree: beyond it, idle time cannot be separated from launching."""

CAPTURING = "StreamBeginCapture"
"""Part of the name of the call that begins the capture of a graph: later launches run nothing."""


class DeviceDoubt(Struct, frozen=True, kw_only=True):
    """One reason why device data are implausible."""

    kind: DoubtKind
    text: str
    """Observation and affected analyses: one sentence for the top of a report."""
    work: bool
    """Whether durations of kernels are implausible; else only idle time."""


def doubts_in(trace: Trace, starts: Int64, ends: Int64) -> tuple[DeviceDoubt, ...]:
    """Return the doubts about a trace whose steps last from ``starts`` to ``ends`` (ns, sorted.

    Empty without steps).
    """
    if not len(trace.rows["kernels"]) and not len(trace.rows["copies"]):
        return tuple(_no_device_work(trace))
    return (*_overlap(trace), *_outside(trace, starts, ends), *_clocks(trace, starts, ends))


def _no_device_work(trace: Trace) -> Iterator[DeviceDoubt]:
    kinds = trace.rows["calls"]["kind"]
    kernels = int(np.isin(kinds, (CallKind.KERNEL, CallKind.GRAPH)).sum())
    copies = int(np.isin(kinds, (CallKind.COPY, CallKind.MEMSET)).sum())
    if not kernels or len(trace.rows["hlo_ops"]) or any(CAPTURING in text for text in trace.strings):
        return
    launched = f"{kernels + copies:,} launches{f' ({copies:,} of copies)' if copies else ''}"
    if len(trace.rows["kernel_counters"]):
        why = "the profiler counted in place of timing"
    else:
        why = f"the profiler got no device activity. Usual reasons: {_reasons(trace)}"
    yield DeviceDoubt(
        kind="no_device_work",
        text=f"{launched} and no kernel: {why}. Times of the device are not judged",
        work=True,
    )


def _reasons(trace: Trace) -> str:
    calls = trace.rows["calls"]
    names = {trace.text(int(code)) for code in np.unique(calls["name"])}
    if any(name.startswith("hip") for name in names):
        return "kernel tracing was off, or the framework was built without roctracer or rocprofiler"
    return "no permission for CUPTI, another profiler was attached, or CUPTI is older than the driver"


def _overlap(trace: Trace) -> Iterator[DeviceDoubt]:
    kernels = trace.rows["kernels"]
    order = np.lexsort((kernels["start_ns"], kernels["stream"], kernels["device"]))
    if len(order) < 2:
        return
    start, end, call, device, stream = (
        kernels[name][order].astype(np.int64) for name in ("start_ns", "end_ns", "call", "device", "stream")
    )
    first = np.concatenate(([True], (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])))
    lane = np.cumsum(first) - 1
    ahead = np.concatenate(([True], first[1:] | (call[1:] == MISSING) | (call[1:] != call[:-1])))
    run = np.cumsum(ahead) - 1  # consecutive kernels of one launch
    begins = start[ahead]
    until = np.full(len(begins), MISSING, np.int64)
    np.maximum.at(until, run, end)
    # The streams one after another on one axis, so that the latest end so far is always of the same stream.
    shift = lane[ahead] * (int(end.max()) - int(start.min()) + 1)
    reach = np.maximum.accumulate(until + shift)[:-1] - (begins + shift)[1:]
    over = np.clip(reach, 0, (until - begins)[1:])
    over[first[ahead][1:]] = 0
    total, overlap, count = int((end - start).sum()), int(over.sum()), int((over > 0).sum())
    few = count < LEAST_OVERLAPS and overlap < FEW_SHARE * total
    if overlap < OVERLAP_SHARE * total or few or not overlap:
        return
    yield DeviceDoubt(
        kind="overlap",
        text=f"{count:,} of {len(order):,} kernels begin before the kernel in front of them in their stream has ended "
        f"({format_share(overlap, total)} of the kernel time): their durations cannot be true. "
        "Times of the device are not judged",
        work=True,
    )


def _outside(trace: Trace, starts: Int64, ends: Int64) -> Iterator[DeviceDoubt]:
    work = launched_work(trace, starts, ends) if len(starts) else None
    if work is None:
        return
    low, high = int(starts[0]), int(ends[-1])
    known = work.ends != MISSING
    first, last = int(work.begins[known].min()), int(work.ends.max())
    spans = [trace.rows[table] for table in ("kernels", "copies")]
    busy = union(*(np.concatenate([table[name] for table in spans]) for name in ("start_ns", "end_ns")))
    total = int(covered(busy, [first], [last])[0])
    late = int(covered(busy, [max(first, high)], [max(last, high)])[0])
    queued = high - min(work.launched_ns, high)
    idle = queued - int(covered(busy, [high - queued], [high])[0])
    if late <= OUTSIDE_SHARE * total or idle <= max(QUEUED_IDLE_SHARE * (high - low), LEAST_QUEUED_NS):
        return
    yield DeviceDoubt(
        kind="outside_steps",
        text=f"{format_share(late, total)} of the device work of the steps runs after them, and the device was idle "
        f"for {format_ns(idle)} of their {format_ns(high - low)} with work in its queue: its times are wrong, or "
        "another process had the device. Idle time is not judged",
        work=False,
    )


def _clocks(trace: Trace, starts: Int64, ends: Int64) -> Iterator[DeviceDoubt]:
    calls, worst = trace.rows["calls"], 0
    for table in ("kernels", "copies"):
        work = trace.rows[table]
        linked = work["call"] != MISSING
        early = calls["start_ns"][work["call"][linked]] - work["start_ns"][linked]
        worst = max(worst, int(early.max()) if len(early) else 0)
    begin, end = trace.span_ns()
    step = (ends - starts).mean() if len(starts) else end - begin
    if worst <= CLOCK_SLACK_NS or worst <= CLOCK_SHARE * step:
        return
    yield DeviceDoubt(
        kind="clocks",
        text=f"device work begins up to {format_ns(worst)} before its launch: the clocks of device and host disagree. "
        "Idle time is not judged",
        work=False,
    )
