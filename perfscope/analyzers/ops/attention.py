"""Attention written out: scores = q k^T, pointwise ops, softmax, pointwise ops, scores v.

Exact from the op graph (dataflow), else from a trace with shapes (order and element counts). The
*score ops* are those that read or write a tensor of the size of the scores, the two matmuls aside,
with the backward of each: what a fused kernel keeps on chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from perfscope.analyzers.ops.fusion import is_elementwise, region_bytes
from perfscope.analyzers.ops.graph_time import Flow, base_name, flow_of, short_name, trace_flow
from perfscope.analyzers.ops.kernels import Operand, input_tensors
from perfscope.analyzers.ops.recompute import EVALUATE, autograd_nodes
from perfscope.analyzers.time import lineage, named_slices, nearest_ancestor, outermost, slice_name
from perfscope.model.op_flops import PRODUCTS
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

SOFTMAX = frozenset({"aten._softmax", "aten._safe_softmax", "aten.softmax"})
SDPA_SOFTMAX = "aten._safe_softmax"
"""The softmax of torch's own math fallback of ``scaled_dot_product_attention``."""

MOST_HOPS = 32
"""Elementwise ops between a matmul and the softmax: scale, mask, bias, casts, dropout are under ten."""


class GraphAttention(Struct, frozen=True, kw_only=True):
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
    known = flow_of(graph) if flow is None else flow
    backward: dict[int, list[int]] = {}
    for index, op in enumerate(graph.ops):
        if op.phase == "backward" and op.sequence is not None and not op.view and not op.recompute:
            backward.setdefault(op.sequence, []).append(index)
    result = []
    for index, op in enumerate(graph.ops):
        if base_name(op) in SOFTMAX and op.phase != "backward" and not op.view:
            attention = _attention(graph, known, index, backward)
            if attention is not None:
                result.append(attention)
    return tuple(result)


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
        if short_name(graph.ops[index]) not in PRODUCTS and _largest(graph, index) >= size
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
        matmuls = [index for index in reached if short_name(graph.ops[index]) in PRODUCTS]
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


# Attention written out, from a bare trace: a matmul that makes the scores, a softmax, one that reads them.
#
# There is no dataflow in a trace; the order of the ops on their thread and the element counts of
# their inputs stand for it.


SOFTMAX_KERNELS = frozenset({"aten::_softmax", "aten::_safe_softmax"})
MATMUL_KERNELS = frozenset({"aten::bmm", "aten::baddbmm"})
"""Batched only: a plain `mm` around a softmax may be a gate between two weights, which shapes do not tell."""
SDPA_MATH = "aten::_scaled_dot_product_attention_math"

SCORE_OPS = frozenset(
    {
        "aten::mul", "aten::mul_", "aten::div", "aten::div_", "aten::add", "aten::add_", "aten::sub",
        "aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::copy_", "aten::native_dropout",
        "aten::bernoulli_", "aten::tanh", "aten::clamp", "aten::maximum",
    }
)  # fmt: skip
"""Elementwise ops between the matmuls of written-out attention: scale, mask, bias, cap, cast, dropout."""

MOST_APART = 40
"""Ops between a matmul and the softmax, views and allocations included."""


class TraceAttention(Struct, frozen=True, kw_only=True):
    """One attention of a trace that was computed by its formula. All are rows of ``slices``."""

    softmax: int
    ops: tuple[int, ...]
    """Score ops, and the autograd nodes that run their backward."""
    score: Operand
    by_sdpa: bool


def trace_attentions(trace: Trace) -> tuple[TraceAttention, ...]:
    """Written-out attentions in order of the table. Needs host ops with shapes."""
    slices = trace.rows["slices"]
    nodes = trace.fact(autograd_nodes)
    in_backward = nearest_ancestor(trace, slices["parent"].astype(np.int64), nodes) != MISSING
    used = named_slices(trace, (SOFTMAX_KERNELS | MATMUL_KERNELS | SCORE_OPS).__contains__)
    chosen = (slices["kind"] == SliceKind.OP) & used & ~in_backward
    rows = outermost(trace, chosen)
    backward = _backward_nodes(trace)
    result = []
    for position, row in enumerate(rows.tolist()):
        if slice_name(trace, row) in SOFTMAX_KERNELS:
            attention = _trace_attention(trace, rows, position, backward)
            if attention is not None:
                result.append(attention)
    return tuple(result)


def _trace_attention(
    trace: Trace, rows: np.ndarray, position: int, backward: dict[tuple[int, int], list[int]]
) -> TraceAttention | None:
    row = int(rows[position])
    inputs = input_tensors(trace, row)
    if not inputs:
        return None
    score = inputs[0]
    before = _until_matmul(trace, rows[max(0, position - MOST_APART) : position][::-1], score, makes=True)
    after = _until_matmul(trace, rows[position + 1 : position + 1 + MOST_APART], score, makes=False)
    if before is None or after is None:
        return None
    forward = sorted((*before, row, *after))
    slices = trace.rows["slices"]
    thread = int(slices["thread"][row])
    sequences = {int(slices["sequence"][op]) for op in forward if slices["forward_thread"][op] == 0} - {MISSING}
    behind = [node for sequence in sorted(sequences) for node in backward.get((sequence, thread), ())]
    by_sdpa = any(slice_name(trace, around) == SDPA_MATH for around in lineage(trace, row))
    return TraceAttention(softmax=row, ops=(*forward, *behind), score=score, by_sdpa=by_sdpa)


def _until_matmul(trace: Trace, rows: np.ndarray, score: Operand, *, makes: bool) -> list[int] | None:
    """Score ops on the way to the matmul that makes (or reads) the scores; None if another softmax comes first."""
    passed: list[int] = []
    for row in rows.tolist():
        name = slice_name(trace, row)
        if name in SOFTMAX_KERNELS:
            return None
        tensors = input_tensors(trace, row)
        if name in MATMUL_KERNELS:
            size = (
                _made(name, tensors)
                if makes
                else max(
                    (tensor.elements for tensor in (tensors[1:2] if name == "aten::baddbmm" else tensors[:1])),
                    default=0,
                )
            )
            if size == score.elements:
                return passed
        elif any(tensor.elements == score.elements for tensor in tensors):
            passed.append(row)
    return None


def _made(name: str, tensors: tuple[Operand, ...]) -> int:
    """Elements of a matrix product: (..., M, K) x (..., K, N) -> (..., M, N)."""
    factors = tensors[1:3] if name == "aten::baddbmm" else tensors[:2]
    if len(factors) < 2 or any(len(factor.shape) < 2 for factor in factors):
        return 0
    left, right = factors
    return math.prod(left.shape[:-1]) * right.shape[-1]


def _backward_nodes(trace: Trace) -> dict[tuple[int, int], list[int]]:
    """(sequence, forward's row of ``threads``) -> autograd nodes.

    Traces name the forward's thread by an id of their own, so the numbers are taken as of one
    thread unless several threads ran forward ops.
    """
    slices = trace.rows["slices"]
    nodes = np.flatnonzero(trace.fact(autograd_nodes) & (slices["sequence"] != MISSING))
    forward = (slices["kind"] == SliceKind.OP) & (slices["forward_thread"] == 0) & (slices["sequence"] != MISSING)
    threads = np.unique(slices["thread"][forward]).tolist()
    result: dict[tuple[int, int], list[int]] = {}
    for node in nodes.tolist():
        name = slice_name(trace, node).removeprefix(EVALUATE).lstrip(": ")
        if not name.startswith(("Bmm", "Mm", "Baddbmm")):
            for thread in threads:
                result.setdefault((int(slices["sequence"][node]), thread), []).append(node)
    return result
