"""Device time accounting: busy, compute, exposed communication, exposed copies, idle; exact.

``compute + exposed_communication + exposed_copy + idle = span`` in integer ns for every device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.model.intervals import Intervals, difference_total, merge, union
from perfscope.model.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Where the time of one device went. The span runs from its first work to its last."""

    rank: int | None
    device: int
    """Row of the ``devices`` table."""
    ordinal: int
    name: str
    span_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int
    kernel_time_ns: int
    """Sum of kernel durations; larger than busy where streams run side by side."""
    kernels: int
    start_ns: int
    end_ns: int

    def check(self) -> None:
        """``ValueError`` unless the parts sum to the span and to busy, exactly."""
        busy = self.compute_ns + self.exposed_communication_ns + self.exposed_copy_ns
        if busy != self.busy_ns or busy + self.idle_ns != self.span_ns:
            raise ValueError(f"device {self.ordinal}: parts do not sum: {self}")


def device_busy(trace: Trace) -> dict[int, Intervals]:
    """Union of all device work (kernels, copies, memsets) per row of ``devices``."""
    return {
        device: merge(*(_work(trace, table, device) for table in ("kernels", "copies")))
        for device in range(len(trace.rows["devices"]))
    }


def device_times(trace: Trace) -> tuple[DeviceTime, ...]:
    """The accounting of every device that did work, in order of the ``devices`` table."""
    kernels, devices = trace.rows["kernels"], trace.rows["devices"]
    busy_by_device = trace.fact(device_busy)
    accounts = []
    for device in range(len(devices)):
        busy = busy_by_device[device]
        on_device = kernels["device"] == device
        communicates = kernels["communication"]
        compute = _union_of(trace, on_device & ~communicates)
        communication = _union_of(trace, on_device & communicates)
        working = merge(compute, communication)
        start, end = (int(busy.starts[0]), int(busy.ends[-1])) if len(busy.starts) else (0, 0)
        accounts.append(
            DeviceTime(
                rank=trace.source.rank,
                device=device,
                ordinal=int(devices["ordinal"][device]),
                name=trace.text(int(devices["name"][device])),
                span_ns=end - start,
                busy_ns=busy.total(),
                compute_ns=compute.total(),
                communication_ns=communication.total(),
                exposed_communication_ns=difference_total(communication, compute),
                exposed_copy_ns=difference_total(_work(trace, "copies", device), working),
                idle_ns=end - start - busy.total(),
                kernel_time_ns=int((kernels["end_ns"] - kernels["start_ns"])[on_device].sum()),
                kernels=int(on_device.sum()),
                start_ns=start,
                end_ns=end,
            )
        )
    return tuple(accounts)


def check_device_times(trace: Trace) -> None:
    """``ValueError`` unless the parts of every device's time sum to its span, exactly."""
    for device in trace.fact(device_times):
        device.check()


def _work(trace: Trace, table: str, device: int) -> Intervals:
    rows = trace.rows[table]
    chosen = rows["device"] == device
    return union(rows["start_ns"][chosen], rows["end_ns"][chosen])


def _union_of(trace: Trace, chosen: np.ndarray) -> Intervals:
    kernels = trace.rows["kernels"]
    return union(kernels["start_ns"][chosen], kernels["end_ns"][chosen])
