"""Pictures of PyTorch programs: ops that could be one kernel, and kernels that inductor kept apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from perfscope.analyzers.graph import Flow, short_name, trace_flow
from perfscope.analyzers.ops import FusionGroup, fusion_groups, fusion_reason, op_times
from perfscope.analyzers.torch_compile import RefusedPair, node_bytes, refused_pairs
from perfscope.dashboards.web.views._graphs import MOST_NODES, Box, Edge, Node, Subject
from perfscope.model.compile_log import CodeLine, CompiledKernel, Graph, GraphNode
from perfscope.model.finding import AbstainError
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns, format_share

MOST_GROUPS, MOST_HOT, MOST_PAIRS = 30, 15, 15
MOST_OF_GROUP = 36
"""Most ops drawn of a group, the first ones; the rest of the picture is for neighbours."""
MOST_BEFORE = 8
"""Most values drawn from before the step, largest first."""


def op_subjects(trace: Trace) -> Iterator[Subject]:
    """Groups of ops that one kernel could run, most bytes first; then the longest ops."""
    graph, flow = trace.op_graph, trace.fact(trace_flow)
    if graph is None or flow is None:
        return
    drawing = _Drawing(trace, graph, flow)
    groups = trace.fact(fusion_groups)
    grouped: set[int] = set()
    for group in groups[:MOST_GROUPS]:
        grouped.update(group.ops)
        yield drawing.of_group(group)
    if drawing.ns is not None:
        for index in np.argsort(-drawing.ns, kind="stable")[:MOST_HOT].tolist():
            if index not in grouped and drawing.ns[index] > 0:
                yield drawing.of_op(index)


class _Drawing:
    """Draws parts of one op graph."""

    def __init__(self, trace: Trace, graph: OpGraph, flow: Flow) -> None:
        self.graph, self.flow = graph, flow
        self.groups = trace.fact(fusion_groups)
        self.group_of = {op: number for number, group in enumerate(self.groups) for op in group.ops}
        self.ns: np.ndarray | None = None
        try:
            times = trace.fact(op_times)
            self.ns, self.basis = times.ns, times.basis
        except AbstainError:
            self.basis = "structural"

    def of_group(self, group: FusionGroup) -> Subject:
        """A group drawn as a box, with its sources and readers."""
        ops = [self.graph.ops[index] for index in group.ops]
        names = ", ".join(dict.fromkeys(short_name(op) for op in ops[:12]))
        spent = None if self.ns is None else float(self.ns[list(group.ops)].sum())
        texts = [
            f"These {len(ops):,} ops run as separate kernels"
            + (f" and take {format_ns(spent)} per step ({self.basis})" if spent else "")
            + f". One kernel, as torch.compile makes it, would keep {format_bytes(group.saved_bytes)} of the "
            f"{format_bytes(group.eager_bytes)} that they move per step "
            f"({format_share(group.saved_bytes, group.eager_bytes)}, counted from shapes) out of memory."
        ]
        title = f"{len(ops):,} ops: {names}"
        why = f"{format_bytes(group.saved_bytes)} per step could stay on the chip"
        return self._subject(title, why, float(group.saved_bytes), group.ops[:MOST_OF_GROUP], group.ops, tuple(texts))

    def of_op(self, index: int) -> Subject:
        """One op and its neighbours."""
        spent = 0.0 if self.ns is None else float(self.ns[index])
        why = f"{format_ns(spent)} per step, {self.basis}"
        return self._subject(short_name(self.graph.ops[index]), why, spent, (index,), (index,), ())

    def _subject(
        self, title: str, why: str, weight: float, drawn: Sequence[int], all_ops: Sequence[int], texts: tuple[str, ...]
    ) -> Subject:
        chosen = set(drawn)
        near: dict[int, int] = {}
        for index in drawn:
            for tensor, producer in self.flow.producers[index]:
                near[producer] = max(near.get(producer, 0), self.graph.tensors[tensor].bytes)
            for reader in self.flow.consumers[index]:
                near[reader] = max(near.get(reader, 0), *(self.graph.tensors[t].bytes for t in self.flow.writes[index]))
        neighbours = sorted((index for index in near if index not in chosen), key=lambda index: (-near[index], index))
        room = MOST_NODES - len(drawn) - MOST_BEFORE
        kept = sorted([*drawn, *neighbours[:room]])
        numbers = {index: position for position, index in enumerate(kept)}
        boxes, box_of = self._boxes(kept, chosen)
        nodes = [self._node(self.graph.ops[index], box_of.get(index, -1), chosen=index in chosen) for index in kept]
        edges = [
            Edge(
                start=numbers[producer], end=numbers[index], bytes=self.graph.tensors[tensor].bytes,
                words=f"storage {self.graph.tensors[tensor].storage}",
                saved=box_of.get(index, -1) >= 0 and box_of.get(index) == box_of.get(producer),
            )
            for index in kept for tensor, producer in self.flow.producers[index] if producer in numbers
        ]  # fmt: skip
        self._before(drawn, numbers, nodes, edges)
        places = {_line(self.graph.ops[index]) for index in all_ops} - {""}
        left = len(neighbours) - len(neighbours[:room]) + len(all_ops) - len(drawn)
        return Subject(
            kind="ops", title=title, why=why, weight=weight, nodes=nodes, edges=edges, boxes=boxes,
            names=frozenset(), lines=frozenset(places), words=texts, left=left,
            ns=None if self.ns is None or len(all_ops) < 2 else float(self.ns[list(all_ops)].sum()),
        )  # fmt: skip

    def _boxes(self, kept: Sequence[int], chosen: set[int]) -> tuple[list[Box], dict[int, int]]:
        """The group itself, and other groups of which at least two ops are drawn."""
        members: dict[int, list[int]] = {}
        for index in kept:
            if index in self.group_of:
                members.setdefault(self.group_of[index], []).append(index)
        boxes: list[Box] = []
        box_of: dict[int, int] = {}
        for number, ops in members.items():
            if len(ops) < 2:
                continue
            group = self.groups[number]
            which = "these could be one kernel" if chosen & set(ops) else "a separate group"
            text = f"{len(group.ops):,} ops, {format_bytes(group.saved_bytes)} per step"
            for index in ops:
                box_of[index] = len(boxes)
            boxes.append(Box(title=which, words=text, is_one=False))
        return boxes, box_of

    def _before(self, drawn: Iterable[int], numbers: dict[int, int], nodes: list[Node], edges: list[Edge]) -> None:
        """Values that exist before the step, such as parameters, with the chosen ops that read them."""
        readers: dict[int, list[tuple[int, int]]] = {}
        for index in drawn:
            made = {tensor for tensor, _ in self.flow.producers[index]}
            for tensor in self.flow.reads[index]:
                if tensor not in made:
                    readers.setdefault(self.graph.tensors[tensor].storage, []).append((index, tensor))
        largest = sorted(readers, key=lambda storage: (-self.flow.storage_bytes[storage], storage))[:MOST_BEFORE]
        for storage in largest:
            seen = self.graph.tensors[readers[storage][0][1]]
            kind = "parameter or buffer" if storage in self.graph.parameters else "exists before the step"
            size = self.flow.storage_bytes[storage]
            spelled = f"{seen.dtype.removeprefix('torch.')}{list(seen.shape)}"
            node = Node(name=f"storage {storage}", what=f"{kind}, {spelled}", bytes=size, runs=False, text=spelled)
            nodes.append(node)
            for index, tensor in readers[storage]:
                size = self.graph.tensors[tensor].bytes
                edges.append(Edge(start=len(nodes) - 1, end=numbers[index], bytes=size, words=f"storage {storage}"))

    def _node(self, op: GraphOp, box: int, *, chosen: bool) -> Node:
        tensors = self.graph.tensors

        def spelled(indices: Iterable[int]) -> str:
            held = (tensors[index] for index in indices)
            return ", ".join(
                f"{graph_tensor.dtype.removeprefix('torch.')}{list(graph_tensor.shape)} @{graph_tensor.storage}"
                for graph_tensor in held
            )

        written = [tensors[write].bytes for write in self.flow.writes[op.index]]
        lines = [f"{op.name}({spelled(op.inputs)})", f"  -> {spelled(op.outputs)}"]
        lines.append(f"  {op.phase} {op.module}".rstrip())
        if op.file is not None:
            lines.append(f"  {_line(op)} {op.function or ''}".rstrip())
        if op.host_read is not None:
            lines.append(f"  the host waits here: {op.host_read}")
        shape = list(tensors[op.outputs[0]].shape) if op.outputs else []
        return Node(
            name=short_name(op), what=f"{op.phase} {shape}", box=box, line=_line(op), bytes=sum(written),
            ns=None if self.ns is None else round(float(self.ns[op.index])), text="\n".join(lines), chosen=chosen,
        )  # fmt: skip


def _line(op: GraphOp) -> str:
    return "" if op.file is None else f"{op.file}:{op.line}" if op.line is not None else op.file


def inductor_subjects(trace: Trace) -> Iterator[Subject]:
    """Two kernels of torch.compile with a value between them, and inductor's reason for not merging them."""
    log = trace.compile_log
    if log is None:
        return
    graphs: dict[tuple[str | None, str | None], Graph] = {
        (graph.compile_id, graph.direction): graph for graph in log.graphs
    }
    for pair in sorted(trace.fact(refused_pairs), key=lambda pair: -pair.saved_bytes)[:MOST_PAIRS]:
        graph = graphs.get((pair.refusal.compile_id, pair.refusal.direction))
        if graph is not None:
            yield _pair(pair, graph)


def _pair(pair: RefusedPair, graph: Graph) -> Subject:
    held = {node.name: node for node in (*graph.inputs, *graph.nodes)}
    sides: list[tuple[CompiledKernel | None, Sequence[str], str]] = [
        (pair.first, pair.refusal.first_nodes, pair.refusal.first),
        (pair.second, pair.refusal.second_nodes, pair.refusal.second),
    ]
    box_of: dict[str, int] = {}
    boxes = []
    for number, (kernel, wanted, name) in enumerate(sides):
        inside = [text for text in dict.fromkeys((*wanted, *(kernel.nodes if kernel else ()))) if text in held]
        for text in inside[: MOST_NODES // 2 - 4]:
            box_of.setdefault(text, number)
        boxes.append(Box(title=kernel.name if kernel else name, words=f"{len(inside):,} nodes in one kernel"))
    inputs = [text for name in box_of for text in held[name].inputs if text in held and text not in box_of]
    readers = [node.name for node in graph.nodes if node.name not in box_of and set(node.inputs) & set(box_of)]
    order = {name: index for index, name in enumerate(held)}
    around = list(dict.fromkeys((*inputs, *readers)))
    kept = sorted([*box_of, *around[: MOST_NODES - len(box_of)]], key=lambda name: order[name])
    numbers = {name: index for index, name in enumerate(kept)}
    nodes = [_graph_node(held[name], box_of.get(name, -1)) for name in kept]
    edges = []
    for name in kept:
        for source in dict.fromkeys(held[name].inputs):
            if source in numbers:
                inside_one = box_of.get(source, -1) >= 0 and box_of.get(source) == box_of.get(name)
                size = None if inside_one else node_bytes(held[source])
                saved = box_of.get(source) == 0 and box_of.get(name) == 1
                edges.append(Edge(start=numbers[source], end=numbers[name], bytes=size, saved=saved,
                                  words="could stay on the chip" if saved else ""))  # fmt: skip
    reason = fusion_reason(pair.refusal.reason)
    texts = [
        f"inductor kept them apart: {reason.meaning} ({pair.refusal.reason}).",
        f"{format_bytes(pair.saved_bytes)} each time would not go through memory in one kernel (counted from shapes).",
        *([reason.fix] if reason.fix else []),
    ]
    lines = frozenset(_spot(code_line) for code_line in (pair.written_at, pair.read_at) if code_line is not None)
    return Subject(
        kind="compiled", title=f"{boxes[0].title} to {boxes[1].title}", weight=float(pair.saved_bytes), nodes=nodes,
        why=f"not fused: {reason.meaning}", edges=edges, boxes=boxes, lines=lines, words=tuple(texts),
        names=frozenset(box.title for box in boxes), left=len(around) - (len(kept) - len(box_of)),
    )  # fmt: skip


def _graph_node(node: GraphNode, box: int) -> Node:
    spelled = f"{(node.dtype or '').removeprefix('torch.')}{list(node.shape)}"
    line = "" if node.place is None else _spot(node.place)
    return Node(
        name=node.name, what=f"{node.op} {spelled}", box=box, line=line, bytes=node_bytes(node), chosen=box >= 0,
        text=f"{node.name}: {spelled} = {node.op}({', '.join(node.inputs)})", runs=node.op != "placeholder",
    )  # fmt: skip


def _spot(code_line: CodeLine) -> str:
    return f"{code_line.file}:{code_line.line}"
