"""Unfused attention: scores = q k^T, pointwise ops, softmax, pointwise ops, scores v.

Exact from the op graph (dataflow), else from a trace with shapes (order and element counts). The *score ops* read or
write a tensor of the size of the scores, except the two matmuls, with the backward of each: a fused kernel keeps their
results on chip.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from perfscope.analyzers.graph import (
    BATCHED,
    SOFTMAX,
    Flow,
    Node,
    ProgramGraph,
    ScoreGroup,
    base_name,
    flow_of,
    op_program,
    score_groups,
    trace_flow,
    trace_program,
)
from perfscope.analyzers.ops.fusion import is_elementwise, region_bytes
from perfscope.analyzers.ops.kernels import Operand, input_tensors
from perfscope.analyzers.ops.recompute import EVALUATE, autograd_nodes
from perfscope.analyzers.spans import lineage, named_slices, nearest_ancestor, outermost, slice_name
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import OpGraph

SDPA_SOFTMAX = "aten._safe_softmax"
"""The softmax of torch's math fallback of ``scaled_dot_product_attention``."""


class GraphAttention(Struct, frozen=True, kw_only=True):
    """One unfused attention of the op graph."""

    softmax: int
    """Index of the softmax op in ``OpGraph.ops``."""
    matmuls: tuple[int, int]
    ops: tuple[int, ...]
    """Score ops, forward and backward, in order, without the matmuls."""
    score_shape: tuple[int, ...]
    score_dtype: str
    bytes: int
    """Bytes that the score ops read and write per step."""
    by_sdpa: bool
    """Whether the program called ``scaled_dot_product_attention`` and got its math fallback."""


def graph_attentions(trace: Trace) -> tuple[GraphAttention, ...]:
    """Return the unfused attentions of the trace's op graph, in order; empty without a graph."""
    flow = trace.fact(trace_flow)
    return () if trace.op_graph is None or flow is None else find_attentions(trace.op_graph, flow)


def find_attentions(graph: OpGraph, flow: Flow | None = None) -> tuple[GraphAttention, ...]:
    """Return the same as ``graph_attentions`` for a graph."""
    known = flow_of(graph) if flow is None else flow
    program = op_program(graph, known)
    found = (_attention(graph, known, program, group) for group in score_groups(program))
    return tuple(sorted((one for one in found if one is not None), key=lambda attention: attention.softmax))


def _attention(graph: OpGraph, flow: Flow, program: ProgramGraph[Node], group: ScoreGroup) -> GraphAttention | None:
    """The attention of a group; None in a backward, which activation checkpointing computes again."""
    if group.exponential is None or group.weighted is None:
        return None
    softmax, scores, weighted = (
        program.nodes[node].kernel or 0 for node in (group.exponential, group.scores[0], group.weighted)
    )
    if graph.ops[softmax].phase == "backward":
        return None
    ops = group.kernels(program)
    edge = set(ops)
    while edge:  # dropout masks and biases of the scores' size that are made on the side
        made = {writer for index in edge for _, writer in flow.producers[index]} - ops
        edge = {index for index in made if _is_score_op(graph, index, group.size)}
        ops |= edge
    out = graph.tensors[graph.ops[softmax].outputs[0]]
    return GraphAttention(
        softmax=softmax,
        matmuls=(scores, weighted),
        ops=tuple(sorted(ops)),
        score_shape=out.shape,
        score_dtype=out.dtype,
        bytes=sum(
            region_bytes(graph, flow, flow.reads[index]) + region_bytes(graph, flow, flow.writes[index])
            for index in ops
        ),
        by_sdpa=base_name(graph.ops[softmax]) == SDPA_SOFTMAX,
    )


def _is_score_op(graph: OpGraph, index: int, size: int) -> bool:
    op = graph.ops[index]
    return is_elementwise(op) and any(math.prod(graph.tensors[tensor].shape) == size for tensor in op.outputs)


# Attention written out, from a bare trace.


SDPA_MATH = "aten::_scaled_dot_product_attention_math"

SCORE_OPS = frozenset(
    {
        "aten::mul", "aten::mul_", "aten::div", "aten::div_", "aten::add", "aten::add_", "aten::sub",
        "aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::copy_", "aten::native_dropout",
        "aten::bernoulli_", "aten::tanh", "aten::clamp", "aten::maximum",
    }
)  # fmt: skip
"""Elementwise ops between the matmuls of written-out attention: scale, mask, bias, cap, cast, dropout."""
USED_OPS = SCORE_OPS | frozenset(f"aten::{name}" for name in (*BATCHED, *SOFTMAX - {"softmax"}))


class TraceAttention(Struct, frozen=True, kw_only=True):
    """One unfused attention of a trace. All fields are rows of ``slices``."""

    softmax: int
    ops: tuple[int, ...]
    """Score ops, and the autograd nodes that run their backward."""
    score: Operand
    by_sdpa: bool


def trace_attentions(trace: Trace) -> tuple[TraceAttention, ...]:
    """Return the unfused attentions in order of the table. Requires host ops with shapes."""
    slices = trace.rows["slices"]
    nodes = trace.fact(autograd_nodes)
    in_backward = nearest_ancestor(trace, slices["parent"].astype(np.int64), nodes) != MISSING
    used = named_slices(trace, USED_OPS.__contains__)
    rows = outermost(trace, (slices["kind"] == SliceKind.OP) & used & ~in_backward).tolist()
    backward = _backward_nodes(trace)
    program = trace_program(trace, rows)
    found = [_trace_attention(trace, program, group, backward) for group in score_groups(program)]
    return tuple(sorted((one for one in found if one is not None), key=lambda attention: attention.softmax))


def _trace_attention(
    trace: Trace, program: ProgramGraph[Node], group: ScoreGroup, backward: dict[tuple[int, int], list[int]]
) -> TraceAttention | None:
    row = None if group.exponential is None else program.nodes[group.exponential].kernel
    if row is None:
        return None
    forward = sorted(group.kernels(program))
    slices = trace.rows["slices"]
    thread = int(slices["thread"][row])
    sequences = {int(slices["sequence"][op]) for op in forward if slices["forward_thread"][op] == 0} - {MISSING}
    behind = [node for sequence in sorted(sequences) for node in backward.get((sequence, thread), ())]
    by_sdpa = any(slice_name(trace, around) == SDPA_MATH for around in lineage(trace, row))
    score = input_tensors(trace, row)[0]
    return TraceAttention(softmax=row, ops=(*forward, *behind), score=score, by_sdpa=by_sdpa)


def _backward_nodes(trace: Trace) -> dict[tuple[int, int], list[int]]:
    """Map (sequence, forward's row of ``threads``) to autograd nodes.

    Traces identify the forward's thread by a separate id, so the numbers are assumed to be of one thread unless several
    threads ran forward ops.
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
