"""Attention written out, from a bare trace: a matmul that makes the scores, a softmax, one that reads them.

There is no dataflow in a trace; the order of the ops on their thread and the element counts of
their inputs stand for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.nesting import lineage, nearest_ancestor
from perfscope.analyzers.facts.op_signature import TensorSpec, input_tensors
from perfscope.analyzers.facts.recompute import EVALUATE, autograd_nodes
from perfscope.model.trace import MISSING, SliceKind, Trace

SOFTMAX = frozenset({"aten::_softmax", "aten::_safe_softmax"})
MATMUL = frozenset({"aten::bmm", "aten::baddbmm"})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAttention:
    """One attention of a trace that was computed by its formula. All are rows of ``slices``."""

    softmax: int
    ops: tuple[int, ...]
    """Score ops, and the autograd nodes that run their backward."""
    score: TensorSpec
    by_sdpa: bool


def trace_attentions(trace: Trace) -> tuple[TraceAttention, ...]:
    """Written-out attentions in order of the table. Needs host ops with shapes."""
    slices = trace.rows["slices"]
    nodes = trace.fact(autograd_nodes)
    in_backward = nearest_ancestor(trace, slices["parent"].astype(np.int64), nodes) != MISSING
    used = {code for code, text in enumerate(trace.strings) if text in SOFTMAX | MATMUL | SCORE_OPS}
    chosen = (slices["kind"] == SliceKind.OP) & np.isin(slices["name"], list(used)) & ~in_backward
    rows = np.flatnonzero(chosen)
    rows = rows[nearest_ancestor(trace, slices["parent"][rows].astype(np.int64), chosen) == MISSING]
    backward = _backward_nodes(trace)
    found = []
    for position, row in enumerate(rows.tolist()):
        if _name(trace, row) in SOFTMAX:
            attention = _attention(trace, rows, position, backward)
            if attention is not None:
                found.append(attention)
    return tuple(found)


def _attention(
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
    by_sdpa = any(_name(trace, around) == SDPA_MATH for around in lineage(trace, row))
    return TraceAttention(softmax=row, ops=(*forward, *behind), score=score, by_sdpa=by_sdpa)


def _until_matmul(trace: Trace, rows: np.ndarray, score: TensorSpec, *, makes: bool) -> list[int] | None:
    """Score ops on the way to the matmul that makes (or reads) the scores; None if another softmax comes first."""
    passed: list[int] = []
    for row in rows.tolist():
        name = _name(trace, row)
        if name in SOFTMAX:
            return None
        tensors = input_tensors(trace, row)
        if name in MATMUL:
            size = (
                _made(name, tensors) if makes else max((tensor.elements for tensor in _left(name, tensors)), default=0)
            )
            if size == score.elements:
                return passed
        elif any(tensor.elements == score.elements for tensor in tensors):
            passed.append(row)
    return None


def _left(name: str, tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tensors[1:2] if name == "aten::baddbmm" else tensors[:1]


def _made(name: str, tensors: tuple[TensorSpec, ...]) -> int:
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
    found: dict[tuple[int, int], list[int]] = {}
    for node in nodes.tolist():
        name = _name(trace, node).removeprefix(EVALUATE).lstrip(": ")
        if not name.startswith(("Bmm", "Mm", "Baddbmm")):
            for thread in threads:
                found.setdefault((int(slices["sequence"][node]), thread), []).append(node)
    return found


def _name(trace: Trace, row: int) -> str:
    return trace.text(int(trace.rows["slices"]["name"][row]))
