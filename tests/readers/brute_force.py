"""Device time by a brute-force sweep over the raw events, which shares no code with the facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from perfscope.analyzers.time.device_time import device_times
from perfscope.model.trace import Trace

Work = tuple[str, int, int]
"""``kernel``, ``communication`` or ``copy``, begin and end in ns."""


def _totals(work: Sequence[Work]) -> Counter[str]:
    """Span, busy, compute, communication, exposed parts, idle in ns; kernels and their summed time."""
    total: Counter[str] = Counter()
    marks = sorted(mark for kind, start, end in work for mark in ((start, 1, kind), (end, -1, kind)))
    active: Counter[str] = Counter()
    # the span begins with the first work that lasts
    before = min((start for _, start, end in work if end > start), default=0)
    for time, change, kind in marks:
        length = max(0, time - before)
        before = max(before, time)
        compute, communication, copy = (active[kind] > 0 for kind in ("kernel", "communication", "copy"))
        total["span"] += length
        total["busy"] += length * (compute or communication or copy)
        total["compute"] += length * compute
        total["communication"] += length * communication
        total["exposed_communication"] += length * (communication and not compute)
        total["exposed_copy"] += length * (copy and not compute and not communication)
        total["idle"] += length * (not (compute or communication or copy))
        active[kind] += change
    for kind, start, end in work:
        if kind != "copy":
            total["kernels"] += 1
            total["kernel_time"] += end - start
    return total


def assert_device_times(trace: Trace, work: Mapping[int, Sequence[Work]]) -> None:
    """The trace's device times equal the sweep over its work; devices without time are ignored."""
    expected = {ordinal: total for ordinal, rows in work.items() if (total := _totals(rows))["span"]}
    found = {
        device.ordinal: {
            "span": device.span_ns,
            "busy": device.busy_ns,
            "compute": device.compute_ns,
            "communication": device.communication_ns,
            "exposed_communication": device.exposed_communication_ns,
            "exposed_copy": device.exposed_copy_ns,
            "idle": device.idle_ns,
            "kernels": device.kernels,
            "kernel_time": device.kernel_time_ns,
        }
        for device in trace.fact(device_times)
        if device.kernels or device.busy_ns
    }
    assert found == {ordinal: {name: total[name] for name in found[ordinal]} for ordinal, total in expected.items()}
