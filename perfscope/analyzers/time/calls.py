"""Runtime and driver calls that make the host wait for the device, and which of them belong to the program.

CUDA, HIP and MTIA names, runtime and driver. A call blocks by its name, or because it is an asynchronous copy with
pageable host memory: the driver finishes a copy to the host before it returns, and stages a large copy to the device
through its own buffer, for which it may wait for the stream (CUDA runtime API, "API synchronization behavior").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.spans import lineage, nearest_ancestor, rows_by_device
from perfscope.model.intervals import Int64, numbered
from perfscope.model.trace import MISSING, CallKind, CopyKind, HostMemory, SliceKind, Trace

Framework = Literal["torch", "jax", "none"]
"""Framework of a program, for advice; ``none``: only CUDA or HIP."""

_OF_ANY_PROGRAM = ("nsys", "perfetto")
"""Formats that also record programs without a framework."""
_TORCH_NAMES = ("aten::", "at::native::", "void at::native::", "c10d::", "torch/")

_NameTest = Callable[[str], bool]

_VERSION_SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$")

_BLOCKING = re.compile(
    r"""
      (cuda|hip) (Stream|Device|Event|Thread) Synchronize        # runtime
    | cu (Stream|Event|Ctx) Synchronize                          # driver
    | (cuda|hip) Memcpy (2D|3D|Peer|ToSymbol|FromSymbol|ToArray|FromArray|DtoH|HtoD|DtoD)?
    | cu Memcpy (DtoH|HtoD|DtoD|2D|3D|Peer)?
    | hipMemcpyWithStream                                        # copies, then waits for the stream
    | (cuda|hip) (Free|FreeHost|HostFree|FreeArray)              # frees wait for the device
    | cu Mem (Free|FreeHost)
    | synchronize | synchronizeStream                            # MTIA
    """,
    re.VERBOSE,
)

STAGED_BYTES = 64 * 1024
"""Limit up to which a copy from pageable memory is passed with the command and the call returns at once: 64 KiB."""

_ASYNC_COPY = re.compile(r"(cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")

_DEVICE_WIDE = re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")

_PROFILER_FRAMES = ("torch/profiler/", "torch/autograd/profiler.py")

NO_OP = "(outside every op)"

SHORT_DELAY_NS = 10_000
"""Maximum delay of a launch on an idle device (usually 3 to 8 us): with less, nothing was queued before it."""

SHORT_NS = 10_000
"""Duration below which a kernel spends at least a fifth of its time filling and draining the device."""

RAMP_NS = 2_000
"""Fixed time of a kernel: an empty kernel takes 1 to 2 us in recordings, and less compute does not shorten that."""


def framework(trace: Trace) -> Framework:
    """Return the framework by the recording: XLA programs, reads of arrays, a profiler of PyTorch, names of its ops."""
    if len(trace.rows["hlo_ops"]) or trace.hlo or trace.host_reads:
        return "jax"
    named = trace.source.format not in _OF_ANY_PROGRAM or any(text.startswith(_TORCH_NAMES) for text in trace.strings)
    return "torch" if named else "none"


def base_name(name: str) -> str:
    """Return a call's name without the version suffixes that some tools keep (``cudaFree_v3020``)."""
    return _VERSION_SUFFIX.sub("", name)


def blocks_by_name(name: str) -> bool:
    """Whether a call with that name returns only when the device has finished."""
    return _BLOCKING.fullmatch(base_name(name)) is not None


def blocking_calls(trace: Trace) -> npt.NDArray[np.int64]:
    """Return rows of ``calls`` that make the host wait for the device, without the profiler's own, in table order."""
    calls = trace.rows["calls"]
    blocking = np.isin(calls["name"], _codes(trace, blocks_by_name))
    blocking[_pageable_copies(trace)] = True
    rows = np.flatnonzero(blocking)
    own = profiler_syncs(trace)
    return rows[~np.isin(rows, own)]


def profiler_syncs(trace: Trace) -> npt.NDArray[np.int64]:
    """Return the rows of ``calls`` in which the profiler itself waits for the device.

    Kineto waits once when it starts or stops. Such a call is device-wide, outside of every op, and either has no launch
    on one of its sides, or is in a frame of the profiler.
    """
    calls = trace.rows["calls"]
    wide = np.flatnonzero(np.isin(calls["name"], _codes(trace, lambda name: bool(_DEVICE_WIDE.fullmatch(name)))))
    launching = np.isin(calls["kind"], [CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET])
    if not len(wide):
        return wide
    launches = calls["start_ns"][launching]
    first, last = (int(launches.min()), int(launches.max())) if len(launches) else (0, 0)
    own = []
    for row in wide:
        start = int(calls["start_ns"][row])
        outermost = start < first or start > last or not len(launches)
        inside_op, in_profiler = _surroundings(trace, int(calls["parent"][row]))
        if in_profiler or (outermost and not inside_op):
            own.append(row)
    return np.array(own, np.int64)


def device_waits(trace: Trace) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the rows of ``calls`` that wait for the device, the profiler's own among them.

    The mask marks those that wait for all work of a device, not only for one stream or event.
    """
    rows = np.union1d(trace.fact(blocking_calls), profiler_syncs(trace)).astype(np.int64)
    names = trace.rows["calls"]["name"][rows]
    return rows, np.isin(names, _codes(trace, lambda name: bool(_DEVICE_WIDE.fullmatch(name))))


def _surroundings(trace: Trace, parent: int) -> tuple[bool, bool]:
    slices = trace.rows["slices"]
    inside_op = in_profiler = False
    for row in lineage(trace, parent):
        inside_op |= slices["kind"][row] == SliceKind.OP
        if slices["kind"][row] == SliceKind.PYTHON:
            in_profiler |= any(part in trace.text(int(slices["name"][row])) for part in _PROFILER_FRAMES)
    return inside_op, in_profiler


def _pageable_copies(trace: Trace) -> npt.NDArray[np.int64]:
    copies, calls = trace.rows["copies"], trace.rows["calls"]
    to_host = copies["kind"] == CopyKind.DEVICE_TO_HOST
    staged = (copies["kind"] == CopyKind.HOST_TO_DEVICE) & (copies["bytes"] > STAGED_BYTES)
    pageable = (copies["host_memory"] == HostMemory.PAGEABLE) & (to_host | staged)
    rows = np.unique(copies["call"][pageable & (copies["call"] >= 0)])
    asynchronous = np.isin(calls["name"][rows], _codes(trace, lambda name: bool(_ASYNC_COPY.fullmatch(name))))
    return rows[asynchronous].astype(np.int64)


def _codes(trace: Trace, matches: _NameTest) -> npt.NDArray[np.int64]:
    """Return the codes of the matching call names; each distinct name is tested once."""
    return np.array([code for code in trace.fact(_names) if matches(base_name(trace.text(code)))], np.int64)


def _names(trace: Trace) -> tuple[int, ...]:
    return tuple(np.unique(trace.rows["calls"]["name"]).tolist())


# Innermost ops of runtime calls on the host, and values summed by op. Vectorised.


def ops_of_calls(trace: Trace, calls: npt.ArrayLike) -> Int64:
    """Return the row of ``slices`` of the innermost op around each row of ``calls``; ``MISSING`` without one."""
    rows = np.asarray(calls, np.int64)
    parents = trace.rows["calls"]["parent"]
    inside = np.where(rows == MISSING, MISSING, parents[np.maximum(rows, 0)]) if len(parents) else rows
    return nearest_ancestor(trace, inside, trace.rows["slices"]["kind"] == SliceKind.OP)


def largest_by_op(
    trace: Trace, calls: npt.ArrayLike, values: npt.ArrayLike, limit: int
) -> list[tuple[str, int, int, int]]:
    """Return (op name, sum, count, largest) of ``values`` by the op around ``calls``, largest sum first."""
    ops = ops_of_calls(trace, calls)
    amounts = np.asarray(values, np.int64)
    names = trace.rows["slices"]["name"]
    codes = np.where(ops == MISSING, MISSING, names[np.maximum(ops, 0)]) if len(names) else ops
    distinct, index = numbered(codes)
    total, largest = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.add.at(total, index, amounts)
    np.maximum.at(largest, index, amounts)
    count = np.bincount(index, minlength=len(distinct))
    order = np.argsort(-total, kind="stable")[:limit]
    return [
        (trace.text(int(distinct[i])) or NO_OP, int(total[i]), int(count[i]), int(largest[i])) for i in order.tolist()
    ]


# Lead of the host over each device: delay from launch call to start, and the length of the queue.


class LaunchDelay(Struct, frozen=True, kw_only=True):
    """Launches of one device. Only the first kernel of a graph launch counts."""

    launches: int
    unqueued: int
    """Launches that started within ``SHORT_DELAY_NS``, on an otherwise idle device."""
    mean_queue: float
    """Launched but not yet started work, averaged over the device's span (Little: sum of delays / span)."""


def launch_delays(trace: Trace) -> dict[int, LaunchDelay]:
    """Return the delays per row of ``devices`` with known launch calls. Negative delays (clock skew) count as 0."""
    kernels, calls = trace.rows["kernels"], trace.rows["calls"]
    result = {}
    for device, on_device in enumerate(trace.fact(rows_by_device)["kernels"]):
        linked = on_device[kernels["call"][on_device] != MISSING]
        if not len(linked):
            continue
        order = np.argsort(kernels["start_ns"][linked], kind="stable")
        call, first = np.unique(kernels["call"][linked][order], return_index=True)
        start = kernels["start_ns"][linked][order][first]
        delay = np.maximum(start - calls["start_ns"][call], 0)
        span = int(kernels["end_ns"][on_device].max() - kernels["start_ns"][on_device].min())
        result[device] = LaunchDelay(
            launches=len(call),
            unqueued=int((delay < SHORT_DELAY_NS).sum()),
            mean_queue=float(delay.sum() / span) if span else 0.0,
        )
    return result


# Pairs of consecutive short kernels on a busy device, and the upper bound of the saving by merging each.


class ShortPairs(Struct, frozen=True, kw_only=True):
    """One entry per pair, by its second kernel."""

    kernel: Int64
    """Row of ``kernels`` of the second kernel."""
    gap_ns: Int64
    """Time between the two in which the device was idle although the second was queued."""
    saved_ns: Int64
    """Gap plus ramp: ``min(RAMP_NS, duration)`` of the second kernel."""


def short_pairs(trace: Trace, device: int) -> ShortPairs:
    """Return the pairs on one device (row of ``devices``).

    Two compute kernels below ``SHORT_NS``, neighbours in the order of start of all work of the device, on one stream,
    with nothing else running when the second starts, and the second launched before the first ended. Kernels without a
    known launch are excluded, because it is unknown whether they were queued.
    """
    tables = [trace.rows["kernels"], trace.rows["copies"]]
    here = [trace.fact(rows_by_device)[table][device] for table in ("kernels", "copies")]
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
