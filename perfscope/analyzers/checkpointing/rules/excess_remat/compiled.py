"""What ``excess_remat`` says of forward work that a compiled backward computes again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from perfscope.analyzers.checkpointing.inductor_remat import (
    CompiledBargain,
    GraphRecompute,
    compiled_bargain,
    graph_recompute,
)
from perfscope.analyzers.ops import spans_of_slices
from perfscope.analyzers.time import compiled_rows, cost_text, per_step, whole_ns, work_time
from perfscope.analyzers.torch_compile import where_of
from perfscope.analyzers.torch_compile.inductor_fusion import node_bytes
from perfscope.model.compile_log import CompiledKernel, GraphNode
from perfscope.model.finding import Cell, Finding, Where, fit_title, severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_count

MAX_ROWS = 20

_ALL = ("elsewhere", "not lowered", "headroom")
"""Verdicts under which all can be saved."""

_Member = tuple[GraphRecompute, int]
"""A graph, and the index of one of its heavy nodes."""


def compiled_findings(trace: Trace, min_share: float) -> Iterator[Finding]:
    """One finding for each line whose products, convolutions or attention the backward computes again.

    Where the time of all of them is known and below ``min_share`` of the steps nothing is said, nor where the memory
    may be needed. Of compilations of one frame the one that recomputes most counts.
    """
    bargain = trace.fact(compiled_bargain)
    if bargain.verdict == "may not fit":
        return
    members_by_line: dict[Where, list[_Member]] = defaultdict(list)
    for graph in _one_a_frame(trace.fact(graph_recompute)):
        for index, node in enumerate(graph.heavy):
            members_by_line[where_of(node.place) if node.place else Where(op=node.op)].append((graph, index))
    for where, members in members_by_line.items():
        times = [_time(trace, graph.kernels[index]) for graph, index in members]
        known = [spent for spent in times if spent is not None]
        cost = sum(known) if len(known) == len(times) else None
        if cost is None or cost >= min_share * whole_ns(trace) > 0:
            yield _finding(trace, where, members, times, cost, bargain)


def _one_a_frame(graphs: tuple[GraphRecompute, ...]) -> list[GraphRecompute]:
    frames: dict[str, GraphRecompute] = {}
    for graph in graphs:
        frame = graph.compile_id.rpartition("/")[0]
        if frame not in frames or len(graph.heavy) > len(frames[frame].heavy):
            frames[frame] = graph
    return list(frames.values())


def _time(trace: Trace, kernel: CompiledKernel | None) -> int | None:
    """Exposed device time of a kernel over the trace, or its host time where no device worked; ``None``: not known."""
    rows = _rows_of(trace, kernel)
    if not rows:
        return None
    spans = np.array(rows, np.int64)
    if "device_work" in trace.recorded:
        return work_time(trace, spans).exposed_ns
    slices = trace.rows["slices"]
    return int((slices["end_ns"] - slices["start_ns"])[spans].sum())


def _rows_of(trace: Trace, kernel: CompiledKernel | None) -> list[int]:
    """Rows of ``slices`` in which a kernel ran."""
    log = trace.compile_log
    if kernel is None or log is None:
        return []
    return [row for row, index in trace.fact(compiled_rows).items() if log.kernels[index] == kernel]


def _finding(
    trace: Trace,
    where: Where,
    members: list[_Member],
    times: list[int | None],
    cost: int | None,
    bargain: CompiledBargain,
) -> Finding:
    nodes = [graph.heavy[index] for graph, index in members]
    flops = sum(graph.flops[index] or 0 for graph, index in members)
    kept = sum(node_bytes(node) for node in nodes)
    ops = ", ".join(sorted({node.op.split(".")[1] for node in nodes}))
    title = f"the compiled backward recomputes {len(nodes):,} {ops}"
    if cost is not None:
        title += f": {cost_text(trace, cost, whole_ns(trace))}"
    elif flops:
        title += f": {format_count(flops)}FLOPs per run"
    detail = f"{format_count(flops)}FLOPs per run; " if flops else ""
    if kept:
        detail += f"saving the results takes {format_bytes(kept)}; "
    detail += f"{_why(bargain)}."
    return Finding(
        subject="recomputed by the compiled backward",
        title=fit_title(title, ops),
        detail=detail,
        severity="medium" if cost is None else severity_of(cost, whole_ns(trace)),
        basis="structural" if cost is None else "measured",
        cost_ns=cost,
        cost_ns_per_step=None if cost is None else per_step(trace, cost),
        where=where,
        evidence=tuple(
            _row(graph, graph.heavy[index], graph.flops[index], time)
            for (graph, index), time in list(zip(members, times, strict=True))[:MAX_ROWS]
        ),
        spans=spans_of_slices(
            trace, sorted({row for graph, index in members for row in _rows_of(trace, graph.kernels[index])})
        ),
        advice=_advice(bargain),
    )


def _why(bargain: CompiledBargain) -> str:
    """Why it is for nothing, or what it buys: the end of a title. All graphs are judged together."""
    peak, bound = format_bytes(bargain.peak_bytes), format_bytes(bargain.saved_peak_bytes)
    room = format_bytes(bargain.room_bytes or 0)
    reasons = {
        "elsewhere": f"the peak lies elsewhere, where none of them would be held: {peak} with and without (modelled)",
        "not lowered": f"it does not lower the peak: {peak} today, {bound} at most with all saved (modelled)",
        "headroom": f"a peak of {bound} at most with all saved has room, {room} to use (modelled)",
        "capacity unknown": (
            f"with all saved the peak is {bound} at most, {peak} today (modelled); whether that memory would be free "
            "is not known"
        ),
        "not known": f"what it buys is not known: {bargain.reason}",
    }
    return reasons[bargain.verdict]


def _advice(bargain: CompiledBargain) -> str:
    return (
        "Save them: torch._functorch.config.activation_memory_budget = 1.0 (smaller budgets recompute)"
        + (". " if bargain.verdict in _ALL else ", if the memory is there. ")
        + "With activation checkpointing use a policy that saves products and attention "
        "(create_selective_checkpoint_contexts)."
    )


def _row(graph: GraphRecompute, node: GraphNode, flops: int | None, spent: int | None) -> dict[str, Cell]:
    return {
        "node": node.name,
        "op": node.op,
        "compile_id": graph.compile_id,
        "result_bytes": node_bytes(node),
        "flops": flops,
        "time_ns": spent,
        "recomputed_in_graph": len(graph.nodes),
        "recomputed_in_graph_bytes": graph.result_bytes,
    }
