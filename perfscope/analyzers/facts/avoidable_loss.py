"""Logits and their copies: a number for each token and each word of the vocabulary, several times over.

A cross-entropy over a large vocabulary holds the logits, their copy in float32, the log-softmax that is kept for the
backward pass, and the gradients of these. Computed over a part of the tokens at a time, one part is alive.

The log-softmax is known by its op, or by the stack; the copies are what was made right before and behind it in the same
size (or that of half or twice as many bytes an element).
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.facts.avoidable_blocks import AskingOps, Avoidable, asking_ops, same_size
from perfscope.analyzers.facts.memory_stacks import nearest_frame
from perfscope.model.memory import Int64, MemoryPhase, MemoryTimeline
from perfscope.model.trace import MISSING, Trace

_FORWARD_OP = re.compile(r"aten::(_?log_softmax|cross_entropy_loss)")
_BACKWARD_OP = re.compile(r"aten::_log_softmax_backward_data")
_COPY = re.compile(r"aten::(_?to(_copy)?|copy_|clone|contiguous|float|exp|sub|div)")
_PRODUCT = re.compile(r"aten::(mm|addmm|bmm|linear|matmul|_scaled_mm)")
_FUNCTION = re.compile(r"cross_entropy|log_softmax", re.IGNORECASE)

MOST_APART = 1000
"""Blocks that are looked at before and behind a log-softmax: as many as some layers make."""

SMALL_PART = 4
"""Blocks of less than the logits' size divided by this lie between the copies and are no end of their row."""

ADVICE = (
    "Compute head and loss over a part of the tokens at a time, so that one part's logits are alive: "
    "sum(torch.utils.checkpoint.checkpoint(loss_of, x, y, use_reentrant=False) for x, y in zip(x_TD.chunk(8), "
    "y_T.chunk(8))) with loss_of = lambda x, y: F.cross_entropy(head(x), y, reduction='sum'); or a fused linear "
    "cross-entropy (Liger), which makes no logits"
)


def loss_copies(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Blocks that hold logits, their copies, and the gradients of these."""
    recorded, blocks = timeline.of(trace), timeline.blocks
    ops = asking_ops(recorded, timeline)
    backward = np.isin(blocks["phase"], (MemoryPhase.BACKWARD, MemoryPhase.OPTIMIZER))
    forward = ops.matching(_FORWARD_OP) & ~backward
    if not forward.any():
        forward = _by_stacks(recorded, timeline) & ~backward
    size = blocks["bytes"].astype(np.int64)
    softmax = np.flatnonzero(forward & ~blocks["before"])
    if not len(softmax):
        return None
    # the largest: what is as small as a token's number is the loss itself
    softmax = softmax[same_size(size[softmax], int(size[softmax].max()))]
    chosen = np.zeros(len(blocks), bool)
    chosen[softmax] = True
    around = _Around(timeline, ops, size)
    for row in softmax.tolist():
        chosen[around.ahead(row)] = True
        chosen[around.behind(row)] = True
    return Avoidable(
        kind="logits and their copies",
        said="logits, their copies in the loss, and the gradients of these",
        advice=ADVICE,
        rows=np.flatnonzero(chosen),
    )


def _by_stacks(trace: Trace, timeline: MemoryTimeline) -> npt.NDArray[np.bool_]:
    blocks, frames = timeline.blocks, trace.rows["frames"]
    codes = [code for code in np.unique(frames["name"]).tolist() if _FUNCTION.search(trace.text(code))]
    inside = np.zeros(len(blocks), bool)
    known = np.flatnonzero(blocks["frame"] != MISSING)
    if len(known) and codes:
        named = np.asarray(np.isin(frames["name"], codes))
        inside[known] = nearest_frame(trace, blocks["frame"][known].astype(np.int64), named)[0] != MISSING
    return inside


class _Around:
    """The blocks before and behind a log-softmax, by start."""

    def __init__(self, timeline: MemoryTimeline, ops: AskingOps, size: Int64) -> None:
        self.size = size
        self.before = timeline.blocks["before"]
        self.backward = timeline.blocks["phase"] == MemoryPhase.BACKWARD
        self.product = ops.matching(_PRODUCT)
        copies = ops.unknown() | ops.matching(_COPY)
        self.of_forward = copies | self.product | ops.matching(_FORWARD_OP)
        self.copies = copies
        self.of_backward = copies | ops.matching(_BACKWARD_OP)

    def ahead(self, row: int) -> list[int]:
        """The logits: same-sized blocks right before it, copies first and one product at last."""
        found: list[int] = []
        for one in range(row - 1, max(-1, row - 1 - MOST_APART), -1):
            if self.before[one]:
                break
            if self.size[one] < self.size[row] // SMALL_PART:
                continue
            if not self._alike(one, row) or not self.of_forward[one]:
                break
            found.append(one)
            if self.product[one]:
                break
        return found

    def behind(self, row: int) -> list[int]:
        """The gradients: same-sized blocks with which the backward pass behind it begins."""
        found: list[int] = []
        for one in range(row + 1, min(len(self.size), row + 1 + MOST_APART)):
            if self.size[one] < self.size[row] // SMALL_PART:
                continue
            if not self._alike(one, row):
                break
            if not (self.of_backward if self.backward[one] else self.copies)[one]:
                break
            found.append(one)
        return found

    def _alike(self, one: int, row: int) -> bool:
        return bool(same_size(self.size[one : one + 1], int(self.size[row]))[0])
