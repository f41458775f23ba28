"""The part of ``excess_remat`` for forward work that a compiled backward computes again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.analyzers.memory import SCARCE_SHARE, judged_timelines, peak_held
from perfscope.analyzers.ops import spans_of_slices
from perfscope.analyzers.spans import REGION, compiled_rows, lineage, named_slices, work_time
from perfscope.analyzers.time import per_step, whole_ns
from perfscope.analyzers.torch_compile import node_bytes, node_flops, where_of
from perfscope.model.compile_log import CompiledKernel, CompileLog, Graph, GraphNode
from perfscope.model.finding import AbstainError, Cell, Finding, Where, fit_title
from perfscope.model.live_bytes import Int64
from perfscope.model.memory import MemoryTimeline
from perfscope.model.op_flops import CONVOLUTIONS, FUSED_ATTENTION, PRODUCTS
from perfscope.model.severity import severity_of
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.units import format_bytes, format_count
from perfscope.plugins.memory_advice.plans import SAME_PEAK

# Values that the partitioner of a compiled graph computes again in the backward instead of saving them.
#
# Cheap elementwise ops are recomputed by design, which saves a read of their stored result. Matrix products,
# convolutions and attention are recomputed only if activation checkpointing requests it.

_VIEWS = re.compile(
    r"(?:aten\.(?:permute|view|t|transpose|expand|slice|select|unsqueeze|squeeze|reshape|alias)\b|getitem)"
)

_CALL, _BACKWARD = "CompiledFunction", "CompiledFunctionBackward"
"""Autograd's names of a compiled graph's call and its backward, which share a sequence number."""

MAX_ROWS = 20

_ALL = ("elsewhere", "not lowered", "headroom")
"""Verdicts under which all can be saved."""


class GraphRecompute(Struct, frozen=True, kw_only=True):
    """The recomputation of one backward graph."""

    compile_id: str
    nodes: tuple[GraphNode, ...]
    """All recomputed nodes, including views."""
    heavy: tuple[GraphNode, ...]
    """Matrix products, convolutions, attention."""
    result_bytes: int
    """Bytes of the results of all nodes except views: the most that saving each of them would take."""
    kernels: tuple[CompiledKernel | None, ...]
    """The backward kernel of each heavy node, if the log has it."""
    flops: tuple[int | None, ...]
    """FLOPs of each heavy node; ``None`` for a dynamic size or an op without a formula here."""


def graph_recompute(trace: Trace) -> tuple[GraphRecompute, ...]:
    """Recomputation of every backward graph of the log that has any; empty without a log."""
    log = trace.compile_log
    if log is None:
        return ()
    forward = {graph.compile_id: graph for graph in log.graphs if graph.direction == "forward"}
    recomputes = (
        _of_graph(log, forward[graph.compile_id], graph)
        for graph in log.graphs
        if graph.direction == "backward" and graph.recomputed and graph.compile_id in forward
    )
    return tuple(recompute for recompute in recomputes if recompute.nodes)


def _of_graph(log: CompileLog, forward: Graph, backward: Graph) -> GraphRecompute:
    again = set(backward.recomputed)
    first = {node.name: node for node in forward.nodes}
    # equal work in both graphs has equal names: the same op of the same values in the same shape is the same
    nodes = tuple(
        node
        for node in backward.nodes
        if node.name in again and (node.op, node.shape) == (first[node.name].op, first[node.name].shape)
    )
    heavy = tuple(node for node in nodes if _is_heavy(node.op) and node.inputs == first[node.name].inputs)
    kernels = [
        kernel for kernel in log.kernels if (kernel.compile_id, kernel.direction) == (backward.compile_id, "backward")
    ]
    known = {node.name: node for node in (*backward.inputs, *backward.nodes)}
    return GraphRecompute(
        compile_id=backward.compile_id,
        nodes=nodes,
        heavy=heavy,
        result_bytes=sum(node_bytes(node) for node in nodes if not _VIEWS.match(node.op)),
        kernels=tuple(next((kernel for kernel in kernels if node.name in kernel.nodes), None) for node in heavy),
        flops=tuple(node_flops(node, known) for node in heavy),
    )


def _is_heavy(op: str) -> bool:
    name = op.removeprefix("aten.").partition(".")[0]
    return name in PRODUCTS | CONVOLUTIONS or bool(FUSED_ATTENTION.match(name))


# Benefit of recomputing products in a compiled backward: the measured memory of a step, with their results saved.
#
# Saved results are held from the forward call that makes them to the end of its backward call. Adding them to the
# measured curve gives an upper bound of the peak: today's forward also holds them for a while, the backward needs them
# only until their readers ran, and the values saved today to recompute them could be freed.


CompiledVerdict = Literal["elsewhere", "not lowered", "headroom", "may not fit", "capacity unknown", "not known"]
"""As in `remat_bargain`; see `compiled_bargain`."""


class CompiledBargain(Struct, frozen=True, kw_only=True):
    """The recomputed products of all compiled graphs of a step, judged together. Bytes."""

    verdict: CompiledVerdict
    reason: str = ""
    """Why it is unknown."""
    peak_bytes: int = 0
    """Today's peak, measured."""
    saved_peak_bytes: int = 0
    """Upper bound of the peak with all of them saved."""
    room_bytes: int | None = None
    """Largest allowed peak."""


def compiled_bargain(trace: Trace) -> CompiledBargain:
    """Benefit of the recomputed products in the trace's compiled graphs; the first of these that holds.

    - elsewhere: with all saved the peak is not higher, and none of them would be held at it;
    - not lowered: with all saved the peak is not higher;
    - headroom: with all saved it is within the allowed peak;
    - may not fit: it may exceed that. If the device's size is unknown, room is not judged.
    """
    graphs = {graph.compile_id: graph for graph in trace.fact(graph_recompute) if graph.heavy}
    if not graphs:
        return _unknown("nothing is computed again")
    try:
        timeline = max(judged_timelines(trace), key=lambda timeline: timeline.peak()[1])
    except AbstainError:
        return _unknown("allocator events were not recorded (perfscope run records them in its detail pass)")
    if timeline.axis != "ns":
        return _unknown("the memory was recorded without times")
    starts, ends, sizes = _held_if_saved(timeline.of(trace), graphs)
    if not len(starts):
        return _unknown("no call of these graphs with its backward is in the recording with memory")
    if any(not node_bytes(node) for graph in graphs.values() for node in graph.heavy):
        return _unknown("a result has a size that the log does not contain")
    position, peak = timeline.peak()
    _, bound = timeline.live().plus(starts, ends, sizes).peak()
    room = _room(timeline, peak)
    verdict: CompiledVerdict
    if bound <= round(peak * (1 + SAME_PEAK)):
        verdict = "not lowered" if ((starts <= position) & (position < ends)).any() else "elsewhere"
    elif room is None:
        verdict = "capacity unknown"
    else:
        verdict = "headroom" if bound <= room else "may not fit"
    return CompiledBargain(verdict=verdict, peak_bytes=peak, saved_peak_bytes=bound, room_bytes=room)


def _unknown(reason: str) -> CompiledBargain:
    return CompiledBargain(verdict="not known", reason=reason)


def _held_if_saved(trace: Trace, graphs: Mapping[str, GraphRecompute]) -> tuple[Int64, Int64, Int64]:
    """Start, end and bytes of the results in each call of these graphs whose backward was recorded, (calls,)."""
    slices = trace.rows["slices"]
    backwards = _rows_of(trace, _BACKWARD)
    rows = []
    for forward in _rows_of(trace, _CALL).tolist():
        graph = graphs.get(_region(trace, forward) or "")
        same = slices["sequence"][backwards] == slices["sequence"][forward]
        later = backwards[same & (slices["start_ns"][backwards] >= slices["end_ns"][forward])]
        if graph is not None and len(later):
            backward = later[np.argmin(slices["start_ns"][later])]
            size = sum(node_bytes(node) for node in graph.heavy)
            rows.append((int(slices["start_ns"][forward]), int(slices["end_ns"][backward]), size))
    starts, ends, sizes = np.array(rows, np.int64).reshape(-1, 3).T
    return starts, ends, sizes


def _rows_of(trace: Trace, name: str) -> Int64:
    """Rows of ``slices`` with that name and a sequence number."""
    slices = trace.rows["slices"]
    named = named_slices(trace, lambda text: text == name)
    return np.flatnonzero(named & (slices["kind"] != SliceKind.PYTHON) & (slices["sequence"] != MISSING))


def _region(trace: Trace, row: int) -> str | None:
    for ancestor in lineage(trace, row):
        text = trace.text(int(trace.rows["slices"]["name"][ancestor]))
        if text.startswith(f"{REGION}: "):
            return text.removeprefix(f"{REGION}: ")
    return None


def _room(timeline: MemoryTimeline, peak: int) -> int | None:
    """``SCARCE_SHARE`` of the device, less what its allocator holds beyond a peak."""
    if timeline.capacity_bytes is None or not peak:
        return None
    return int(SCARCE_SHARE * timeline.capacity_bytes * peak / max(peak, peak_held(timeline)))


_Member = tuple[GraphRecompute, int]
"""A graph, and the index of one of its heavy nodes."""


def compiled_findings(trace: Trace, min_share: float) -> Iterator[Finding]:
    """One finding per line whose products, convolutions or attention the backward computes again.

    No finding if their total time is known and below ``min_share`` of the steps, or if the memory may be needed. A
    frame counts with the compilation that recomputes most.
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
    """Exposed device time of a kernel over the trace, or its host time without device work; ``None``: unknown."""
    rows = _kernel_rows(trace, kernel)
    if not rows:
        return None
    spans = np.array(rows, np.int64)
    if "device_work" in trace.recorded:
        return work_time(trace, spans).exposed_ns
    slices = trace.rows["slices"]
    return int((slices["end_ns"] - slices["start_ns"])[spans].sum())


def _kernel_rows(trace: Trace, kernel: CompiledKernel | None) -> list[int]:
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
    if cost is None and flops:
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
            trace, sorted({row for graph, index in members for row in _kernel_rows(trace, graph.kernels[index])})
        ),
        advice=_advice(bargain),
    )


def _why(bargain: CompiledBargain) -> str:
    """Why the time is wasted, or what it buys: the end of a title. All graphs are judged together."""
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
        "not known": f"its benefit is unknown: {bargain.reason}",
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
