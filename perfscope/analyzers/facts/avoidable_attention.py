"""Attention scores that are written out, and kept for the backward pass: they grow with the square of the sequence.

Known from ops with shapes (`facts/attention_sequence.py`); in a memory snapshot from stacks, where a function named
like softmax runs inside one named like attention: what is made there, and what the attention function itself makes in
the same size, are scores.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.facts.attention_sequence import trace_attentions
from perfscope.analyzers.facts.avoidable_blocks import Avoidable, asking_ops, same_size
from perfscope.analyzers.facts.memory_stacks import nearest_frame, user_frames
from perfscope.analyzers.facts.nesting import nearest_ancestor
from perfscope.model.memory import Int64, MemoryPhase, MemoryTimeline
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

_SOFTMAX = re.compile(r"(?<!log_)(?<!log)softmax", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn|sdpa", re.IGNORECASE)

_CATEGORIES = (MemoryCategory.ACTIVATION, MemoryCategory.TEMPORARY, MemoryCategory.UNKNOWN)
_ELSEWHERE = (MemoryPhase.BACKWARD, MemoryPhase.OPTIMIZER)
_PRODUCT = re.compile(r"aten::(bmm|baddbmm|matmul)")

SMALL_PART = 8
"""Of the largest block of an attention: a boolean mask takes a quarter of float32 scores; sums and maxima of their rows
take less than this."""


def attention_scores(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Blocks that hold scores, weights or masks of attention that is written out, and the gradients of these."""
    recorded, blocks = timeline.of(trace), timeline.blocks
    chosen = np.isin(blocks["category"], _CATEGORIES) & ~blocks["before"] & (blocks["phase"] != MemoryPhase.OPTIMIZER)
    candidates = np.flatnonzero(chosen)
    rows = _by_ops(recorded, timeline, candidates)
    if not len(rows):
        rows = _by_stacks(recorded, timeline, candidates)
    if not len(rows):
        return None
    return Avoidable(
        kind="attention scores",
        said="attention scores, weights and masks",
        advice="Call torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True): it keeps one number a "
        "query in place of a row of scores, and computes the scores again in the backward pass",
        rows=rows,
    )


def _by_ops(trace: Trace, timeline: MemoryTimeline, candidates: Int64) -> Int64:
    found = trace.fact(trace_attentions) if "shapes" in trace.recorded else ()
    inside = np.zeros(len(trace.rows["slices"]), bool)
    for attention in found:
        inside[list(attention.ops)] = True  # with those of the backward pass
    if not inside.any():
        return np.empty(0, np.int64)
    ops = timeline.blocks["op"][candidates].astype(np.int64)
    chosen = nearest_ancestor(trace, ops, inside) != MISSING
    size = timeline.blocks["bytes"][candidates].astype(np.int64)
    products = asking_ops(trace, timeline).matching(_PRODUCT)[candidates]
    return candidates[_with_sizes(chosen, size, products)]


def _by_stacks(trace: Trace, timeline: MemoryTimeline, candidates: Int64) -> Int64:
    blocks = timeline.blocks
    framed = blocks["frame"][candidates] != MISSING
    frames = np.maximum(blocks["frame"][candidates].astype(np.int64), 0)
    if not framed.any():
        return candidates[:0]
    elsewhere = np.isin(blocks["phase"][candidates], _ELSEWHERE)
    softmax, attention = _named(trace, _SOFTMAX), _named(trace, _ATTENTION)
    inner = np.where(framed, nearest_frame(trace, frames, softmax)[0], MISSING)
    outer = np.full(len(candidates), MISSING, np.int64)
    known = inner != MISSING
    outer[known] = nearest_frame(trace, inner[known], attention)[0]
    scores = (outer != MISSING) & ~elsewhere
    if not scores.any():
        return candidates[:0]
    size = blocks["bytes"][candidates].astype(np.int64)
    # made by the functions themselves, and not by a module that they call
    user = np.where(framed, trace.fact(user_frames)[frames], MISSING)
    own = (user != MISSING) & (attention[user] | softmax[user]) & ~elsewhere
    chosen = _with_sizes(scores, size, own)
    # the backward pass has no frames of theirs: what has a size there that nothing else has in the forward pass
    others = np.unique(size[~chosen & ~elsewhere])
    return candidates[_with_sizes(chosen, size, elsewhere & ~np.isin(size, others))]


def _with_sizes(scores: npt.NDArray[np.bool_], size: Int64, others: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """``scores``, and those of ``others`` that are as large as one of them; what is small is neither."""
    if not scores.any():
        return scores
    large = size >= int(size[scores].max()) // SMALL_PART
    chosen = scores & large
    for one in np.unique(size[chosen]).tolist():
        chosen |= others & large & same_size(size, one)
    return chosen


def _named(trace: Trace, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Mask over ``frames``: functions of such a name."""
    frames = trace.rows["frames"]
    codes = [code for code in np.unique(frames["name"]).tolist() if pattern.search(trace.text(code))]
    return np.asarray(np.isin(frames["name"], codes))
