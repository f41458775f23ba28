"""Device time accounting: busy, compute, exposed communication, exposed copies, idle; exact.

``compute + exposed_communication + exposed_copy + idle = span`` in integer ns for every device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import rows_by_device, union_of
from perfscope.model.intervals import Intervals, difference, intersection, merge
from perfscope.model.trace import Trace


class DeviceParts(Struct, frozen=True, kw_only=True):
    """Parts of the time of one device, over a span or over its steps; they sum to ``span_ns``."""

    rank: int | None
    """Rank in the job, null if unknown."""
    ordinal: int
    """Ordinal of the device in its process."""
    name: str
    """Product name, empty if not recorded."""
    span_ns: int
    """From its first work to its last: compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns."""
    compute_ns: int
    """Union of kernels that do not communicate."""
    exposed_communication_ns: int
    """Communication while nothing computed."""
    exposed_copy_ns: int
    """Copies and memsets while no kernel ran."""
    idle_ns: int
    """Nothing ran."""


class DeviceTime(DeviceParts, frozen=True, kw_only=True):
    """Where the time of one device went. The span runs from its first work to its last."""

    device: int
    """Row of the ``devices`` table."""
    busy_ns: int
    """Union of all its work: compute_ns + exposed_communication_ns + exposed_copy_ns."""
    communication_ns: int
    """Union of communication kernels, hidden or not."""
    kernel_time_ns: int
    """Sum of kernel durations; larger than busy if streams overlap."""
    kernels: int
    """Number of kernels."""
    start_ns: int
    end_ns: int

    def check(self) -> None:
        """Raise ``ValueError`` unless the parts sum to the span and to busy exactly."""
        busy = self.compute_ns + self.exposed_communication_ns + self.exposed_copy_ns
        if busy != self.busy_ns or busy + self.idle_ns != self.span_ns:
            raise ValueError(f"device {self.ordinal}: parts do not sum: {self}")


class DeviceWork(NamedTuple):
    """Times at which one device worked. ``compute``, ``exposed_communication`` and ``exposed_copy`` are disjoint."""

    compute: Intervals
    """Kernels other than communication."""
    communication: Intervals
    exposed_communication: Intervals
    exposed_copy: Intervals
    """Copies and memsets while no kernel ran."""
    busy: Intervals
    """Union of all work."""


def device_work(trace: Trace) -> dict[int, DeviceWork]:
    """Return the working times of each row of ``devices`` by kind of work."""
    kernels, copies = trace.rows["kernels"], trace.rows["copies"]
    rows = trace.fact(rows_by_device)
    result = {}
    for device, here in enumerate(rows["kernels"]):
        communicates = kernels["communication"][here]
        compute = union_of(kernels, here[~communicates])
        communication = union_of(kernels, here[communicates])
        copying = union_of(copies, rows["copies"][device])
        if trace.part is not None:  # work that begins before the part or ends after it counts for its whole duration
            part = Intervals(np.array([trace.part.start_ns]), np.array([trace.part.end_ns]))
            compute, communication, copying = (intersection(work, part) for work in (compute, communication, copying))
        working = merge(compute, communication)
        result[device] = DeviceWork(
            compute=compute,
            communication=communication,
            exposed_communication=difference(communication, compute),
            exposed_copy=difference(copying, working),
            busy=merge(working, copying),
        )
    return result


def device_busy(trace: Trace) -> dict[int, Intervals]:
    """Return the union of all device work (kernels, copies, memsets) per row of ``devices``."""
    return {device: work.busy for device, work in trace.fact(device_work).items()}


def device_times(trace: Trace) -> tuple[DeviceTime, ...]:
    """Return the times of every device that did work, in order of the ``devices`` table."""
    kernels, devices = trace.rows["kernels"], trace.rows["devices"]
    accounts = []
    for device, work in trace.fact(device_work).items():
        here = trace.fact(rows_by_device)["kernels"][device]
        start, end = (int(work.busy.starts[0]), int(work.busy.ends[-1])) if len(work.busy.starts) else (0, 0)
        accounts.append(
            DeviceTime(
                rank=trace.source.rank,
                device=device,
                ordinal=int(devices["ordinal"][device]),
                name=trace.text(int(devices["name"][device])),
                span_ns=end - start,
                busy_ns=work.busy.total(),
                compute_ns=work.compute.total(),
                communication_ns=work.communication.total(),
                exposed_communication_ns=work.exposed_communication.total(),
                exposed_copy_ns=work.exposed_copy.total(),
                idle_ns=end - start - work.busy.total(),
                kernel_time_ns=int((kernels["end_ns"][here] - kernels["start_ns"][here]).sum()),
                kernels=len(here),
                start_ns=start,
                end_ns=end,
            )
        )
    return tuple(accounts)


def check_device_times(trace: Trace) -> None:
    """Raise ``ValueError`` unless the parts of every device's time sum to its span exactly."""
    for device in trace.fact(device_times):
        device.check()
