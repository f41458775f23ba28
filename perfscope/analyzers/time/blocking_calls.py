"""Which runtime and driver calls make the host wait for the device, and which of them are the program's.

CUDA, HIP and MTIA names, runtime and driver. A call blocks by its name, or because it is an asynchronous
copy with pageable host memory: the driver finishes a copy to the host before it returns, and stages a large
copy to the device through a buffer of its own, for which it may wait for the stream (CUDA runtime API, "API
synchronization behavior").
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.time.spans import lineage, nearest_ancestor
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, CallKind, CopyKind, HostMemory, SliceKind, Trace

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
"""Up to 64 KiB a copy from pageable memory is handed over with the command and the call returns at once."""

_ASYNC_COPY = re.compile(r"(cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")
_DEVICE_WIDE = re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")
_PROFILER_FRAMES = ("torch/profiler/", "torch/autograd/profiler.py")


def base_name(name: str) -> str:
    """A call's name without the version suffixes that some tools keep (``cudaFree_v3020``)."""
    return _VERSION_SUFFIX.sub("", name)


def blocks_by_name(name: str) -> bool:
    """Whether a call of that name returns only when the device has caught up."""
    return _BLOCKING.fullmatch(base_name(name)) is not None


def blocking_calls(trace: Trace) -> npt.NDArray[np.int64]:
    """Rows of ``calls`` that make the host wait for the device, without the profiler's own, in table order."""
    calls = trace.rows["calls"]
    blocking = np.isin(calls["name"], _codes(trace, blocks_by_name))
    blocking[_pageable_copies(trace)] = True
    rows = np.flatnonzero(blocking)
    own = profiler_syncs(trace)
    return rows[~np.isin(rows, own)]


def profiler_syncs(trace: Trace) -> npt.NDArray[np.int64]:
    """Rows of ``calls`` in which the profiler itself waits for the device.

    Kineto waits once when it starts or stops. Such a call is device wide, lies outside every op, and
    either has no launch on one of its sides, or stands in a frame of the profiler.
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
    """Codes of the call names that match, looked up once a distinct name."""
    used = np.unique(trace.rows["calls"]["name"])
    return np.array([code for code in used if matches(base_name(trace.text(int(code))))], np.int64)


# Where runtime calls stand on the host: their innermost op, and values summed by it. Vectorised.


NO_OP = "(outside every op)"


def ops_of_calls(trace: Trace, calls: npt.ArrayLike) -> Int64:
    """Row of ``slices`` of the innermost op around each row of ``calls``; ``MISSING`` where there is none."""
    rows = np.asarray(calls, np.int64)
    parents = trace.rows["calls"]["parent"]
    inside = np.where(rows == MISSING, MISSING, parents[np.maximum(rows, 0)]) if len(parents) else rows
    return nearest_ancestor(trace, inside, trace.rows["slices"]["kind"] == SliceKind.OP)


def largest_by_op(
    trace: Trace, calls: npt.ArrayLike, values: npt.ArrayLike, limit: int
) -> list[tuple[str, int, int, int]]:
    """(op name, sum, count, largest) of ``values`` by the op around ``calls``, the largest sum first."""
    ops = ops_of_calls(trace, calls)
    amounts = np.asarray(values, np.int64)
    names = trace.rows["slices"]["name"]
    codes = np.where(ops == MISSING, MISSING, names[np.maximum(ops, 0)]) if len(names) else ops
    distinct, index = np.unique(codes, return_inverse=True)
    total, largest = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.add.at(total, index, amounts)
    np.maximum.at(largest, index, amounts)
    count = np.bincount(index, minlength=len(distinct))
    order = np.argsort(-total, kind="stable")[:limit]
    return [
        (trace.text(int(distinct[i])) or NO_OP, int(total[i]), int(count[i]), int(largest[i])) for i in order.tolist()
    ]
