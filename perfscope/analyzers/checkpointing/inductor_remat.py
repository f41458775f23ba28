"""What the partitioner of a compiled graph computes in the backward a second time instead of saving it.

Cheap elementwise ops are computed again by design: a read of the input saved for them is spared. Matrix products,
convolutions and attention are not, unless activation checkpointing asked for it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.checkpointing.plans import SAME_PEAK
from perfscope.analyzers.memory.holders import SCARCE_SHARE, judged_timelines, peak_held
from perfscope.analyzers.time import REGION, lineage
from perfscope.analyzers.torch_compile.inductor_fusion import node_bytes
from perfscope.model.compile_log import CompiledKernel, CompileLog, Graph, GraphNode
from perfscope.model.finding import AbstainError
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import MISSING, SliceKind, Trace

_HEAVY = re.compile(
    r"aten\.(?:mm|addmm|bmm|baddbmm|_scaled_mm|convolution|_scaled_dot_product\w*attention\w*|_flash_attention_forward"
    r"|_efficient_attention_forward|_grouped_mm)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRecompute:
    """What one backward graph computes again."""

    compile_id: str
    nodes: tuple[GraphNode, ...]
    """All of it, views included."""
    heavy: tuple[GraphNode, ...]
    """Matrix products, convolutions, attention."""
    result_bytes: int
    """Bytes of the results of all nodes that are no views of others: what saving each of them would take at most."""
    kernels: tuple[CompiledKernel | None, ...]
    """Of each heavy node the kernel of the backward that computes it, where the log tells."""
    flops: tuple[int | None, ...]
    """Of each heavy node; ``None`` where a size is dynamic or the op has no formula here."""


_VIEWS = re.compile(
    r"(?:aten\.(?:permute|view|t|transpose|expand|slice|select|unsqueeze|squeeze|reshape|alias)\b|getitem)"
)


def graph_recompute(trace: Trace) -> tuple[GraphRecompute, ...]:
    """Recomputation of every backward graph of the log that has any; empty without a log."""
    log = trace.compile_log
    if log is None:
        return ()
    forward = {graph.compile_id: graph for graph in log.graphs if graph.direction == "forward"}
    found = (
        _of_graph(log, forward[graph.compile_id], graph)
        for graph in log.graphs
        if graph.direction == "backward" and graph.recomputed and graph.compile_id in forward
    )
    return tuple(one for one in found if one.nodes)


def _of_graph(log: CompileLog, forward: Graph, backward: Graph) -> GraphRecompute:
    again = set(backward.recomputed)
    first = {node.name: node for node in forward.nodes}
    # passes name what they make alike in both graphs: the same op of the same values in the same shape is the same
    nodes = tuple(
        node
        for node in backward.nodes
        if node.name in again and (node.op, node.shape) == (first[node.name].op, first[node.name].shape)
    )
    heavy = tuple(node for node in nodes if _HEAVY.match(node.op) and node.inputs == first[node.name].inputs)
    held = [one for one in log.kernels if (one.compile_id, one.direction) == (backward.compile_id, "backward")]
    known = {node.name: node for node in (*backward.inputs, *backward.nodes)}
    return GraphRecompute(
        compile_id=backward.compile_id,
        nodes=nodes,
        heavy=heavy,
        result_bytes=sum(node_bytes(node) for node in nodes if not _VIEWS.match(node.op)),
        kernels=tuple(next((one for one in held if node.name in one.nodes), None) for node in heavy),
        flops=tuple(_flops(node, known) for node in heavy),
    )


def _flops(node: GraphNode, known: Mapping[str, GraphNode]) -> int | None:
    """Two for each multiply-add of a matrix product; ``None`` for the others."""
    factors = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}
    name = node.op.split(".")[1]
    if name not in factors or len(node.inputs) <= factors[name]:
        return None
    left = known.get(node.inputs[factors[name]])
    sizes = [*node.shape, *(left.shape[-1:] if left else ())]
    whole = [size for size in sizes if isinstance(size, int)]
    return 2 * math.prod(whole) if left is not None and left.shape and len(whole) == len(sizes) else None


# What a compiled backward's recomputation of products buys: the measured memory of a step, with their results saved.
#
# A result that is saved is held from the forward call that makes it to the place in the backward call that makes it
# again today. Put onto the measured curve of what is in use it gives an upper bound of the peak: today's forward
# holds it
# for a while as well, and what is saved today to compute it from may go. Which op of the backward call a node of the
# graph is, is not recorded; so the last ones of its name stand for the nodes, the largest results for the last of
# all.


Int64 = npt.NDArray[np.int64]

CompiledVerdict = Literal[
    "elsewhere", "not lowered", "headroom", "dominated", "headroom for some", "needed", "may not fit",
    "capacity unknown", "not known",
]  # fmt: skip
"""As in `remat_bargain`; see `_judged`."""

_CALL, _BACKWARD = "CompiledFunction", "CompiledFunctionBackward"
"""How autograd names a compiled graph's call and its backward, which have one sequence number."""

_Key = tuple[str, str]
"""Compile id and node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBargain:
    """The recomputed products of all compiled graphs of a step, judged together. Bytes."""

    verdict: CompiledVerdict
    reason: str = ""
    """Why it is not known."""
    peak_bytes: int = 0
    """Today, measured."""
    saved_peak_bytes: int = 0
    """At most, with all of them saved."""
    room_bytes: int | None = None
    """What a peak may be."""
    fitting: frozenset[_Key] = frozenset()
    """Nodes that can be saved within today's peak (`dominated`), or the room; all of them where all can be."""


@dataclass(frozen=True, slots=True)
class _Result:
    """What one heavy node makes. ``again``: its place among those of its graph that are made again, first to last."""

    key: _Key
    op: str
    bytes: int
    again: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a compiled graph with its backward."""

    compile_id: str
    start: int
    forward_end: int
    backward_start: int
    backward_end: int
    made_again: Mapping[str, tuple[int, ...]]
    """Op -> when those of its name end in the backward call, the last first."""


def compiled_bargain(trace: Trace) -> CompiledBargain:
    """What the recomputed products of the trace's compiled graphs buy."""
    log = trace.compile_log
    graphs = {one.compile_id: one for one in trace.fact(graph_recompute) if one.heavy}
    if log is None or not graphs:
        return _unknown("nothing is computed again")
    try:
        timeline = max(judged_timelines(trace), key=lambda one: one.peak()[1])
    except AbstainError:
        return _unknown("what allocators did was not recorded (perfscope run records it in its detail pass)")
    if timeline.axis != "ns":
        return _unknown("the memory was recorded without times")
    calls = _calls(timeline.of(trace), graphs)
    if not calls:
        return _unknown("no call of these graphs with its backward is in the recording with memory")
    if any(not node_bytes(node) for one in graphs.values() for node in one.heavy):
        return _unknown("a result has a size that the log does not say")
    return _judged(_Saving(timeline, calls, graphs), log)


def _unknown(reason: str) -> CompiledBargain:
    return CompiledBargain(verdict="not known", reason=reason)


def _calls(trace: Trace, graphs: Mapping[str, GraphRecompute]) -> list[_Call]:
    """Calls of these graphs in regions that say which, with their backward: by autograd's sequence number."""
    slices = trace.rows["slices"]
    forward, backward = (_rows_of(trace, name) for name in (_CALL, _BACKWARD))
    behind: dict[int, list[int]] = defaultdict(list)
    for row in backward.tolist():
        behind[int(slices["sequence"][row])].append(row)
    found = []
    for row in forward.tolist():
        graph = graphs.get(_region(trace, row) or "")
        start, end = int(slices["start_ns"][row]), int(slices["end_ns"][row])
        later = [one for one in behind[int(slices["sequence"][row])] if slices["start_ns"][one] >= end]
        if graph is not None and later:
            first = min(later, key=lambda one: int(slices["start_ns"][one]))
            begins, ends = int(slices["start_ns"][first]), int(slices["end_ns"][first])
            found.append(_Call(graph.compile_id, start, end, begins, ends, _made_again(trace, first, graph)))
    return found


def _rows_of(trace: Trace, name: str) -> Int64:
    """Rows of ``slices`` of that name that have a sequence number."""
    slices = trace.rows["slices"]
    codes = [code for code, text in enumerate(trace.strings) if text == name]
    return np.flatnonzero(
        np.isin(slices["name"], codes) & (slices["kind"] != SliceKind.PYTHON) & (slices["sequence"] != MISSING)
    )


def _region(trace: Trace, row: int) -> str | None:
    for ancestor in lineage(trace, row):
        text = trace.text(int(trace.rows["slices"]["name"][ancestor]))
        if text.startswith(f"{REGION}: "):
            return text.removeprefix(f"{REGION}: ")
    return None


def _made_again(trace: Trace, backward: int, graph: GraphRecompute) -> dict[str, tuple[int, ...]]:
    slices = trace.rows["slices"]
    begin, end = slices["start_ns"][backward], slices["end_ns"][backward]
    inside = (slices["thread"] == slices["thread"][backward]) & (slices["kind"] == SliceKind.OP)
    inside &= (slices["start_ns"] >= begin) & (slices["start_ns"] < end)
    found = {}
    for op in {_name(node) for node in graph.heavy}:
        codes = [code for code, text in enumerate(trace.strings) if text == f"aten::{op}"]
        ran = slices["end_ns"][inside & np.isin(slices["name"], codes)]
        found[op] = tuple(np.sort(ran)[::-1].tolist())
    return found


def _name(node: GraphNode) -> str:
    return node.op.split(".")[1]


class _Saving:
    """The measured curve of a memory, with results of these graphs on it."""

    def __init__(self, timeline: MemoryTimeline, calls: Sequence[_Call], graphs: Mapping[str, GraphRecompute]) -> None:
        self.timeline = timeline
        self.calls = calls
        self.graphs = graphs
        self.curve = timeline.live()
        called = {call.compile_id for call in calls}
        self.results = [
            _Result((one.compile_id, node.name), _name(node), node_bytes(node), place)
            for one in graphs.values()
            if one.compile_id in called
            for place, node in enumerate(one.heavy)
        ]

    def intervals(self, saved: Sequence[_Result]) -> tuple[Int64, Int64, Int64]:
        """Start, end and bytes of each of ``saved`` in each call, (n,): the largest until the last op of its name."""
        rows: list[tuple[int, int, int]] = []
        for call in self.calls:
            by_op: dict[str, list[int]] = defaultdict(list)
            for one in saved:
                if one.key[0] == call.compile_id:
                    by_op[one.op].append(one.bytes)
            for op, sizes in by_op.items():
                ran = call.made_again[op]
                # fewer ops than nodes: the others are within generated kernels, whose place is not known
                ends = ran if len(ran) >= self._heavy(call, op) else (call.backward_end,) * len(sizes)
                rows += [(call.start, until, size)
                         for size, until in zip(sorted(sizes, reverse=True), ends, strict=False)]  # fmt: skip
        starts, ends_, size = np.array(rows, np.int64).reshape(-1, 3).T
        return starts, ends_, size

    def _heavy(self, call: _Call, op: str) -> int:
        return sum(_name(node) == op for node in self.graphs[call.compile_id].heavy)

    def peak_with(self, saved: Sequence[_Result]) -> int:
        """The highest of the curve, at most, with these results saved."""
        starts, ends, size = self.intervals(saved)
        places = np.unique(np.concatenate((self.curve.positions, starts, ends)))
        level = self.curve.bytes[np.maximum(np.searchsorted(self.curve.positions, places, side="right") - 1, 0)]
        change = np.zeros(len(places), np.int64)
        np.add.at(change, np.searchsorted(places, starts), size)
        np.subtract.at(change, np.searchsorted(places, ends), size)
        return int((level + np.cumsum(change)).max(initial=0))

    def fitting(self, most: int) -> frozenset[_Key]:
        """As many results as can be saved within a peak of ``most``: the smallest, and what is made again first."""
        order = sorted(self.results, key=lambda one: (one.bytes, one.again))
        fits, too_many = 0, len(order) + 1
        while too_many - fits > 1:  # each further one only adds
            middle = (fits + too_many) // 2
            if self.peak_with(order[:middle]) <= most:
                fits = middle
            else:
                too_many = middle
        return frozenset(one.key for one in order[:fits])

    def least(self, log: CompileLog) -> int:
        """What is in use between a forward and its backward with all saved, at least.

        Values that are saved today and that what runs again reads may not be needed any more.
        """
        starts, ends, size = self.intervals(self.results)
        highest = 0
        for call in self.calls:
            inside = (self.curve.positions >= call.forward_end) & (self.curve.positions < call.backward_start)
            before = max(int(np.searchsorted(self.curve.positions, call.forward_end, side="right")) - 1, 0)
            level = max(int(self.curve.bytes[before]), int(self.curve.bytes[inside].max(initial=0)))
            held = int(size[(starts <= call.start) & (ends > call.backward_start)].sum())
            waiting = (one for one in self.calls if one.start <= call.start and one.backward_end > call.backward_start)
            spared = sum(_spared(log, self.graphs[one.compile_id]) for one in waiting)
            highest = max(highest, level + held - spared)
        return highest


def _spared(log: CompileLog, graph: GraphRecompute) -> int:
    """Bytes that the forward graph saves today and that what runs again reads."""
    forward = next(one for one in log.graphs if (one.compile_id, one.direction) == (graph.compile_id, "forward"))
    read = {name for node in graph.nodes for name in node.inputs}
    return sum(node_bytes(node) for node in forward.nodes if node.name in forward.outputs and node.name in read)


def _judged(saving: _Saving, log: CompileLog) -> CompiledBargain:
    """The first of these that holds, and the nodes that need not be computed again.

    - elsewhere: with all saved the peak is at most as high, and at it none of them would be held;
    - not lowered: with all saved it is at most as high;
    - headroom: with all saved it is within the room;
    - dominated: some can be saved within today's peak;
    - headroom for some: some can be saved within the room;
    - needed: none of them, and with all saved the peak is beyond the room for certain;
    - may not fit: it may be. Where the device's size is not known, room is not judged.
    """
    position, peak = saving.timeline.peak()
    bound, room = saving.peak_with(saving.results), _room(saving.timeline, peak)
    starts, ends, _ = saving.intervals(saving.results)
    everything = frozenset(one.key for one in saving.results)
    allowed = round(peak * (1 + SAME_PEAK))
    verdict: CompiledVerdict
    if bound <= allowed:
        held = ((starts <= position) & (position < ends)).any()
        verdict, fitting = "not lowered" if held else "elsewhere", everything
    elif room is not None and bound <= room:
        verdict, fitting = "headroom", everything
    elif same := saving.fitting(allowed):
        verdict, fitting = "dominated", same
    elif room is None:
        verdict, fitting = "capacity unknown", frozenset()
    elif some := saving.fitting(room):
        verdict, fitting = "headroom for some", some
    else:
        verdict, fitting = "needed" if saving.least(log) > room else "may not fit", frozenset()
    return CompiledBargain(verdict=verdict, peak_bytes=peak, saved_peak_bytes=bound, room_bytes=room, fitting=fitting)


def _room(timeline: MemoryTimeline, peak: int) -> int | None:
    """``SCARCE_SHARE`` of the device, less what its allocator holds beyond a peak."""
    if timeline.capacity_bytes is None or not peak:
        return None
    return int(SCARCE_SHARE * timeline.capacity_bytes * peak / max(peak, peak_held(timeline)))
