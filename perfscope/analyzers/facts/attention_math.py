"""Attention written out: scores = q k^T, pointwise ops, softmax, pointwise ops, scores v.

Exact from the op graph (dataflow), else from a trace with shapes (order and element counts). The
*score ops* are those that read or write a tensor of the size of the scores, the two matmuls aside,
with the backward of each: what a fused kernel keeps on chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perfscope.analyzers.facts.fusion_groups import is_elementwise, region_bytes
from perfscope.analyzers.facts.graph_flow import Flow, base_name, flow_of, trace_flow
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import Trace

SOFTMAX = frozenset({"aten._softmax", "aten._safe_softmax", "aten.softmax"})
MATMUL = frozenset({"aten.bmm", "aten.baddbmm", "aten.mm", "aten.addmm", "aten.matmul", "aten._scaled_mm"})
SDPA_SOFTMAX = "aten._safe_softmax"
"""The softmax of torch's own math fallback of ``scaled_dot_product_attention``."""

MOST_HOPS = 32
"""Elementwise ops between a matmul and the softmax: scale, mask, bias, casts, dropout are under ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAttention:
    """One attention of the op graph that was computed by its formula."""

    softmax: int
    """Index of the softmax op in ``OpGraph.ops``."""
    matmuls: tuple[int, int]
    ops: tuple[int, ...]
    """Score ops, forward and backward, in order. The matmuls are not among them."""
    score_shape: tuple[int, ...]
    score_dtype: str
    bytes: int
    """What the score ops read and write in one step."""
    by_sdpa: bool
    """The program called ``scaled_dot_product_attention`` and got its math fallback."""


def graph_attentions(trace: Trace) -> tuple[GraphAttention, ...]:
    """Written-out attentions of the trace's op graph, in order; empty if none was recorded."""
    flow = trace.fact(trace_flow)
    return () if trace.op_graph is None or flow is None else find_attentions(trace.op_graph, flow)


def find_attentions(graph: OpGraph, flow: Flow | None = None) -> tuple[GraphAttention, ...]:
    """As ``graph_attentions``, of a graph."""
    held = flow_of(graph) if flow is None else flow
    backward: dict[int, list[int]] = {}
    for index, op in enumerate(graph.ops):
        if op.phase == "backward" and op.sequence is not None and not op.view and not op.recompute:
            backward.setdefault(op.sequence, []).append(index)
    found = []
    for index, op in enumerate(graph.ops):
        if base_name(op) in SOFTMAX and op.phase != "backward" and not op.view:
            attention = _attention(graph, held, index, backward)
            if attention is not None:
                found.append(attention)
    return tuple(found)


def _attention(graph: OpGraph, flow: Flow, softmax: int, backward: dict[int, list[int]]) -> GraphAttention | None:
    out = graph.tensors[graph.ops[softmax].outputs[0]]
    size = math.prod(out.shape)
    before, scores = _walk(graph, flow, softmax, size, _producers)
    after, weighted = _walk(graph, flow, softmax, size, _consumers)
    if scores is None or weighted is None or not _of_activations(graph, flow, scores, weighted, size):
        return None
    forward = {*before, *after, softmax}
    edge = set(forward)
    while edge:  # dropout masks and biases of score size that are made on the side
        made = {made_by for index in edge for made_by in _producers(graph, flow, index, size)} - forward
        edge = {index for index in made if _is_score_op(graph, index, size)}
        forward |= edge
    sequences = {graph.ops[index].sequence for index in forward} - {None}
    sequences -= {graph.ops[scores].sequence, graph.ops[weighted].sequence}
    behind = {
        index
        for sequence in sequences
        for index in backward.get(sequence or 0, ())
        if base_name(graph.ops[index]) not in MATMUL and _largest(graph, index) >= size
    }
    ops = tuple(sorted(forward | behind))
    return GraphAttention(
        softmax=softmax,
        matmuls=(scores, weighted),
        ops=ops,
        score_shape=out.shape,
        score_dtype=out.dtype,
        bytes=sum(
            region_bytes(graph, flow, flow.reads[index]) + region_bytes(graph, flow, flow.writes[index])
            for index in ops
        ),
        by_sdpa=base_name(graph.ops[softmax]) == SDPA_SOFTMAX,
    )


def _walk(
    graph: OpGraph, flow: Flow, start: int, size: int, neighbours: Callable[[OpGraph, Flow, int, int], Iterable[int]]
) -> tuple[list[int], int | None]:
    """Elementwise ops over ``size`` elements around ``start`` in one direction, and the first matmul met."""
    seen: list[int] = []
    edge = [start]
    for _ in range(MOST_HOPS):
        reached = dict.fromkeys(other for index in edge for other in neighbours(graph, flow, index, size))
        matmuls = [index for index in reached if base_name(graph.ops[index]) in MATMUL]
        edge = [index for index in reached if index not in seen and _is_score_op(graph, index, size)]
        seen.extend(edge)
        if matmuls:
            return seen, matmuls[0]
        if not edge:
            break
    return seen, None


def _producers(graph: OpGraph, flow: Flow, index: int, size: int) -> Iterable[int]:
    return [made_by for tensor, made_by in flow.producers[index] if math.prod(graph.tensors[tensor].shape) == size]


def _consumers(graph: OpGraph, flow: Flow, index: int, size: int) -> Iterable[int]:
    return [
        reader
        for reader in flow.consumers[index]
        if graph.ops[reader].phase == graph.ops[index].phase
        and any(
            made_by == index and math.prod(graph.tensors[tensor].shape) == size
            for tensor, made_by in flow.producers[reader]
        )
    ]


def _is_score_op(graph: OpGraph, index: int, size: int) -> bool:
    op = graph.ops[index]
    return is_elementwise(op) and any(math.prod(graph.tensors[tensor].shape) == size for tensor in op.outputs)


def _of_activations(graph: OpGraph, flow: Flow, scores: int, weighted: int, size: int) -> bool:
    """Attention multiplies activations. softmax(x W1) W2 is a gate or a classifier, not attention."""
    operands = [
        tensor
        for index in (scores, weighted)
        for tensor in flow.reads[index]
        if math.prod(graph.tensors[tensor].shape) != size or index == scores
    ]
    made_scores = any(math.prod(graph.tensors[tensor].shape) == size for tensor in graph.ops[scores].outputs)
    reads_scores = any(math.prod(graph.tensors[tensor].shape) == size for tensor in flow.reads[weighted])
    weights = any(graph.tensors[tensor].storage in graph.parameters for tensor in operands)
    return made_scores and reads_scores and not weights


def _largest(graph: OpGraph, index: int) -> int:
    op: GraphOp = graph.ops[index]
    return max((math.prod(graph.tensors[tensor].shape) for tensor in (*op.inputs, *op.outputs)), default=0)
