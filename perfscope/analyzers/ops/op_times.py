"""The time of each op of the op graph in one step: measured, or estimated from measured ops."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.devices import kernel_roof, named_device
from perfscope.analyzers.hlo import recorded_device
from perfscope.analyzers.ops.graph_time import graph_time
from perfscope.analyzers.spans import subtree_ends
from perfscope.analyzers.time import step_windows
from perfscope.model.finding import AbstainError, Basis
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

Float64 = npt.NDArray[np.float64]


class OpTimes(Struct, frozen=True, kw_only=True):
    """Time of every op of the graph, shape (ops,), in ns; 0 for views."""

    ns: Float64
    step_ns: int | None
    """Median of the steps without a profiler, else mean of the traced ones."""
    basis: Basis
    note: str | None
    """How ops without a time were priced; ``None`` if all have one."""


def op_times(trace: Trace) -> OpTimes:
    """Times of the graph's ops in one step without a profiler. ``AbstainError`` if they are unknown.

    With several timed steps the median counts. On a device an op takes the time of its kernels and copies. Without a
    device it takes its span on the host as a share of the traced step, because profiling makes steps longer. Ops that
    were not found in the timed steps take the time of others with equal FLOPs and bytes.
    """
    graph, timed = trace.op_graph, trace.fact(graph_time)
    if graph is None:
        raise AbstainError("no op graph whose ops could be timed")
    step_ns, traced_ns = _step_ns(trace)
    if not timed.known:
        return _roofline(trace, graph, step_ns, timed.matched_share)
    steps = [_of_step(trace, spans, on_device=timed.on_device) for spans in timed.spans]
    known = np.array(steps)
    ns = np.full(len(graph.ops), np.nan)
    seen = ~np.isnan(known).all(axis=0)
    ns[seen] = np.nanmedian(known[:, seen], axis=0)
    for index, op in enumerate(graph.ops):
        if op.view:
            ns[index] = 0.0
    missing = np.flatnonzero(np.isnan(ns))
    note = None
    if len(missing):
        ns[missing] = _like_others(graph, ns, missing)
        note = f"{len(missing):,} of {len(graph.ops):,} ops have no measured time and are priced by bytes and FLOPs"
    if not timed.on_device and step_ns and traced_ns:
        ns = ns * min(1.0, step_ns / traced_ns)
    return OpTimes(ns=ns, step_ns=step_ns or traced_ns, basis="measured", note=note)


def _step_ns(trace: Trace) -> tuple[int | None, int | None]:
    """Times of a step without a profiler, and of a traced one."""
    windows = trace.fact(step_windows)
    traced = round(float((windows.ends - windows.starts).mean())) if windows.count else None
    return (round(median(trace.step_times_ns)) if trace.step_times_ns else None), traced


def _of_step(trace: Trace, spans: npt.NDArray[np.int64], *, on_device: bool) -> Float64:
    """Time of each op in one traced step; NaN if it was not found."""
    ns = np.full(len(spans), np.nan)
    placed = np.flatnonzero(spans != MISSING)
    rows = spans[placed]
    if not on_device:
        ns[placed] = _host_ns(trace, placed, rows)
        return ns
    order = np.argsort(rows, kind="stable")
    placed, rows = placed[order], rows[order]
    ns[placed] = 0.0
    ends = trace.fact(subtree_ends)[rows]
    for table in ("kernels", "copies"):
        work = trace.rows[table]
        op_rows = work["op"].astype(np.int64)
        index = np.searchsorted(rows, op_rows, side="right") - 1
        inside = (index >= 0) & (op_rows < ends[np.maximum(index, 0)]) if len(rows) else np.zeros(len(op_rows), bool)
        np.add.at(ns, placed[index[inside]], (work["end_ns"] - work["start_ns"])[inside])
    return ns


def _host_ns(trace: Trace, placed: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Float64:
    """The span of each op; in the forward up to the next op, because the Python code between runs again too."""
    slices, graph = trace.rows["slices"], trace.op_graph
    start, end, thread = (slices[name][rows].astype(np.int64) for name in ("start_ns", "end_ns", "thread"))
    forward = np.array([graph is not None and graph.ops[index].phase == "forward" for index in placed.tolist()], bool)
    within = forward[:-1] & forward[1:] & (thread[:-1] == thread[1:]) & (start[1:] >= end[:-1])
    end[:-1] = np.where(within, start[1:], end[:-1])
    return (end - start).astype(np.float64)


def _like_others(graph: OpGraph, ns: Float64, missing: npt.NDArray[np.int64]) -> Float64:
    """Estimate by the median rate of the timed ops: the slower of FLOPs and bytes."""
    moved = np.array([op_bytes(graph, op) for op in graph.ops], np.float64)
    flops = np.array([op.flops or 0 for op in graph.ops], np.float64)
    timed = ~np.isnan(ns) & (ns > 0)
    by_bytes, by_flops = timed & (moved > 0) & (flops == 0), timed & (flops > 0)
    byte_ns = float(np.median(ns[by_bytes] / moved[by_bytes])) if by_bytes.any() else 0.0
    flop_ns = float(np.median(ns[by_flops] / flops[by_flops])) if by_flops.any() else 0.0
    priced: Float64 = np.maximum(moved[missing] * byte_ns, flops[missing] * flop_ns)
    return priced


def _roofline(trace: Trace, graph: OpGraph, step_ns: int | None, matched: float) -> OpTimes:
    """Estimate by the device's peaks, if the recording or the user names a device."""
    device = (named_device(trace.judged_device) if trace.judged_device else None) or recorded_device(trace)
    if device is None:
        raise AbstainError(
            f"{100 * matched:.0f}% of the op graph's ops were found in the timed steps, too few to compute the cost of "
            "recomputing, and no device with known peaks is named; record the run again, or give --device"
        )
    ns = np.zeros(len(graph.ops))
    for index, op in enumerate(graph.ops):
        if not op.view:
            dtype = graph.tensors[op.inputs[0]].dtype.removeprefix("torch.") if op.inputs else ""
            moved = op_bytes(graph, op)
            ns[index] = kernel_roof(device, flops=op.flops, dtype=dtype, precision="highest", moved=moved).roof_ns
    return OpTimes(
        ns=ns,
        step_ns=step_ns,
        basis="modelled",
        note=f"the op graph could not be matched to the timed steps: ops are priced by the peaks of {device.name}",
    )


def op_bytes(graph: OpGraph, op: GraphOp) -> int:
    """Bytes that an op reads and writes, each tensor counted once, or those that its author declared."""
    if op.declared_bytes is not None:
        return op.declared_bytes
    return sum(graph.tensors[index].bytes for index in {*op.inputs, *op.outputs, *op.mutated})
