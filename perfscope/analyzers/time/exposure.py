"""Part of each communication kernel and each copy that no other work covers; the parts sum exactly.

Per device: the time of a row outside of every compute kernel, of every earlier row of its kind, and for copies also
outside of communication. A moment in which two rows overlap belongs to the one that began first, so the rows sum to
``exposed_communication_ns`` and ``exposed_copy_ns`` of the device.
"""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.spans import rows_by_device
from perfscope.analyzers.time.device_time import device_work
from perfscope.analyzers.time.steps import account_windows
from perfscope.model.intervals import Int64, Intervals, covered, intersection, merge, union
from perfscope.model.trace import Rows, Trace


def exposed_communication(trace: Trace) -> Int64:
    """Return, per row of ``kernels``, the exposed ns of a communication kernel; 0 for others."""
    return _exposed(trace, "kernels", None)


def communication_in_steps(trace: Trace) -> Int64:
    """Return, per row of ``kernels``, the part of ``exposed_communication`` in the account's windows, ns."""
    return _exposed(trace, "kernels", _windows(trace))


def exposed_copies(trace: Trace) -> Int64:
    """Return, per row of ``copies``, the ns in which no kernel ran and no copy that began earlier."""
    return _exposed(trace, "copies", None)


def copies_in_steps(trace: Trace) -> Int64:
    """Return, per row of ``copies``, the part of ``exposed_copies`` in the account's windows, ns."""
    return _exposed(trace, "copies", _windows(trace))


def exposed_until(trace: Trace, until_ns: Int64, device: int, computing: Intervals) -> Int64:
    """Return, per row of ``kernels`` of ``device``, the part of ``communication_in_steps`` before ``until_ns``.

    ``until_ns``: per row of ``kernels``, shape (n,), ns. ``device``: row of ``devices``. ``computing``: when a kernel
    other than communication ran on it.
    """
    kernels = trace.rows["kernels"]
    result = np.zeros(len(kernels), np.int64)
    here = trace.fact(rows_by_device)["kernels"][device]
    rows = here[kernels["communication"][here]]
    result[rows] = _uncovered(kernels, rows, computing, until_ns[rows], inside=_windows(trace))
    return result


def _windows(trace: Trace) -> Intervals:
    windows = trace.fact(account_windows)
    return union(windows.starts, windows.ends)


def _exposed(trace: Trace, name: str, inside: Intervals | None) -> Int64:
    """Return the exposed time of communication kernels next to compute kernels, or of copies next to all kernels."""
    table = trace.rows[name]
    exposed = np.zeros(len(table), np.int64)
    for device, work in trace.fact(device_work).items():
        rows, others = trace.fact(rows_by_device)[name][device], merge(work.compute, work.communication)
        if name == "kernels":
            rows, others = rows[table["communication"][rows]], work.compute
        exposed[rows] = _uncovered(table, rows, others, inside=inside)
    return exposed


def _uncovered(
    table: Rows, rows: Int64, by: Intervals, until_ns: Int64 | None = None, inside: Intervals | None = None
) -> Int64:
    """Return, per row, the ns outside of ``by`` and of every earlier row, before ``until_ns`` and in ``inside``."""
    order = np.argsort(table["start_ns"][rows], kind="stable")
    starts, ends = table["start_ns"][rows][order], table["end_ns"][rows][order]
    if not len(rows):
        return np.zeros(0, np.int64)
    reach = np.maximum.accumulate(ends)
    begins = np.maximum(starts, np.concatenate(([starts[0]], reach[:-1])))
    finishes = np.maximum(begins, ends if until_ns is None else np.minimum(ends, until_ns[order]))
    result = np.zeros(len(rows), np.int64)
    time = finishes - begins if inside is None else covered(inside, begins, finishes)
    result[order] = time - covered(by if inside is None else intersection(by, inside), begins, finishes)
    return result
