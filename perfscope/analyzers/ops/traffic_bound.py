"""The longest that avoidable traffic and launches can have taken: no modelled saving is more than that.

A saving that is taken as a share of measured time says nothing of why that time was long: the first call of a kernel, a
slow operand beside the one that is saved, another process on the same cores. What goes away with the bytes is no more
than the bytes at the lowest bandwidth that moving them reaches, and what goes away with a launch no more than the
longest that an empty kernel and the gap behind it take.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfscope.analyzers.devices import DEVICES
from perfscope.analyzers.devices.roofline import NS, bytes_ns
from perfscope.analyzers.ops.achieved import device_peaks, host_costs, kernel_costs
from perfscope.analyzers.predict.assumptions import vendor_factors
from perfscope.analyzers.time import work_inside
from perfscope.model.trace import Trace

HOST_BANDWIDTH = 2 * 10**9
"""Bytes/s that an op on the host moves at least: one core of a shared machine, strided. It streams 5 to 20 GB/s."""

HOST_OP_NS = 10_000
"""The longest an eager op on the host takes beside its elements: dispatch, allocation, a thread pool woken up."""


def longest_ns(trace: Trace, *, moved: float, launches: int) -> int:
    """Upper bound of the time that goes away with ``moved`` bytes and ``launches`` kernels (ops, on the host), ns.

    Of several devices the slowest counts; of one whose peaks are not known the slowest of the catalogue.
    """
    if not len(trace.rows["kernels"]):
        return round(moved * NS / HOST_BANDWIDTH) + launches * HOST_OP_NS
    slowest = min(DEVICES, key=lambda device: device.memory_bandwidth)
    bounds = []
    for device in trace.fact(device_peaks):
        known = device or slowest
        factors = vendor_factors(known.vendor)
        once = factors.kernel[1] + factors.gap[1]
        bounds.append(round(bytes_ns(known, moved) / factors.strided) + launches * once)
    return max(bounds)


def moved_bytes(trace: Trace, ops: Iterable[int]) -> float | None:
    """Bytes that the work in rows of ``slices`` moves; ``None`` where some of it is not known."""
    rows = np.fromiter(ops, np.int64)
    if len(trace.rows["kernels"]):
        inside = trace.fact(kernel_costs).bytes[work_inside(trace, "kernels", rows)]
        return float(inside.sum()) if len(inside) and not np.isnan(inside).any() else None
    costs = host_costs(trace, rows.tolist())
    return float(sum(cost.bytes for cost in costs.values())) if costs and len(costs) == len(rows) else None
