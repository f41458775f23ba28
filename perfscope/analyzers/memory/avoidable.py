"""What the peak of a memory would be without some of its blocks: an exact replay, and an upper bound of the saving.

Replayed are all blocks of a kind, in every step of the recording: without those of one step alone another step would
hold the peak. What is computed in their place (a chunk of the logits, a gradient made later) comes on top, so the
saving is an upper bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.memory.categories import memory_phases
from perfscope.analyzers.memory.phases import NEVER, asking_op
from perfscope.analyzers.memory.sites import nearest_frame, user_frames
from perfscope.analyzers.ops.attention import trace_attentions
from perfscope.analyzers.time.spans import nearest_ancestor
from perfscope.model.finding import Cell
from perfscope.model.memory import ALLOCATION_ROUNDING, Int64, MemoryPhase, MemoryTimeline, SourceLine
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidable:
    """Blocks of one kind that need not be alive at the peak, or not be at all."""

    kind: str
    """Short and without numbers: ``temporaries of the optimizer``."""
    said: str
    """What holds the peak, behind its size: ``logits and their copies``."""
    advice: str
    rows: Int64
    """Of the timeline's ``blocks``, in all steps; a block that is not needed at several times is there as often."""
    until: Int64 | None = None
    """Positions until which each of them is needed; None: not at all."""
    since: Int64 | None = None
    """Positions from which on each of them is needed again, behind a gap that begins at ``until``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """An `Avoidable` with what it does to the peak. Bytes."""

    found: Avoidable
    held_bytes: int
    """At the peak, of blocks that need not be there then."""
    blocks: Int64
    """Their rows, largest first."""
    saved_bytes: int
    peak_bytes: int


def replayed(timeline: MemoryTimeline, found: Avoidable) -> Replayed:
    """The peak of ``timeline`` without what ``found`` says is not needed."""
    position, peak = timeline.peak()
    blocks = timeline.blocks
    start, end = blocks["start"][found.rows], blocks["end"][found.rows]
    begin = start if found.until is None else np.clip(found.until, start, end)
    stop = end if found.since is None else np.clip(found.since, begin, end)
    size = blocks["bytes"][found.rows].astype(np.int64)
    gone = (begin <= position) & (stop > position)
    held = found.rows[gone]
    curve = timeline.live()
    # at every change of the curve, less what is not needed from there on; gaps begin and end at places of their own
    places = np.unique(np.concatenate((curve.positions, begin, stop)))
    level = curve.bytes[np.maximum(np.searchsorted(curve.positions, places, side="right") - 1, 0)]
    change = np.zeros(len(places) + 1, np.int64)
    np.add.at(change, np.searchsorted(places, begin), size)
    np.add.at(change, np.searchsorted(places, stop), -size)
    lowered = int((level - np.cumsum(change)[:-1]).max(initial=0))
    return Replayed(
        found=found,
        held_bytes=int(size[gone].sum()),
        blocks=held[np.argsort(-blocks["bytes"][held], kind="stable")],
        saved_bytes=peak - lowered,
        peak_bytes=peak,
    )


def same_size(sizes: Int64, of: int) -> npt.NDArray[np.bool_]:
    """Whether sizes are, but for rounding, ``of`` bytes, or those of as many elements of half or twice the bytes."""
    alike = np.zeros(len(sizes), bool)
    for wanted in (of, of // 2, 2 * of):
        alike |= np.abs(sizes - wanted) < ALLOCATION_ROUNDING
    return alike


def line_of(timeline: MemoryTimeline, row: int) -> SourceLine | None:
    """The user's line that a block was asked for at."""
    index = int(timeline.blocks["line"][row])
    return None if index == MISSING else timeline.lines[index]


@dataclass(frozen=True, slots=True)
class AskingOps:
    """The op that asked for each block. ``codes``: shape (blocks,), into ``names``; ``''`` where none is known."""

    codes: Int64
    names: tuple[str, ...]

    def matching(self, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
        """By block: whether the whole name of its op matches."""
        alike = [code for code, name in enumerate(self.names) if pattern.fullmatch(name)]
        return np.asarray(np.isin(self.codes, alike))

    def unknown(self) -> npt.NDArray[np.bool_]:
        """By block: whether its op is not known."""
        return np.asarray(np.isin(self.codes, [code for code, name in enumerate(self.names) if not name]))


def asking_ops(trace: Trace, timeline: MemoryTimeline) -> AskingOps:
    """The ops behind all blocks. ``trace``: the one that the timeline's rows are of."""
    distinct, inverse = np.unique(timeline.blocks["op"], return_inverse=True)
    names = tuple(asking_op(trace, int(row)) or "" for row in distinct.tolist())
    return AskingOps(inverse.astype(np.int64), names)


def block_rows(trace: Trace, timeline: MemoryTimeline, rows: Int64) -> tuple[Mapping[str, Cell], ...]:
    """Evidence: one row a line, op and name, most bytes first."""
    groups: dict[tuple[str | None, int | None, str | None, str | None], list[int]] = {}
    for row in rows.tolist():
        line = line_of(timeline, row)
        op = asking_op(trace, int(timeline.blocks["op"][row]))
        name = (
            timeline.text(int(timeline.blocks["name"][row]))
            or timeline.text(int(timeline.blocks["module"][row]))
            or None
        )
        key = (None if line is None else line.file, None if line is None else line.line, op, name)
        held = groups.setdefault(key, [0, 0])
        held[0] += int(timeline.blocks["bytes"][row])
        held[1] += int(timeline.blocks["count"][row])
    ordered = sorted(groups.items(), key=lambda one: -one[1][0])[:MAX_ROWS]
    return tuple(
        {"held_bytes": size, "blocks": count, "file": file, "line": line, "op": op, "name": name}
        for (file, line, op, name), (size, count) in ordered
    )


# Attention scores that are written out, and kept for the backward pass: they grow with the square of the sequence.
#
# Known from ops with shapes (`facts/attention_sequence.py`); in a memory snapshot from stacks, where a function named
# like softmax runs inside one named like attention: what is made there, and what the attention function itself makes
# in
# the same size, are scores.


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


# Logits and their copies: a number for each token and each word of the vocabulary, several times over.
#
# A cross-entropy over a large vocabulary holds the logits, their copy in float32, the log-softmax that is kept for
# the
# backward pass, and the gradients of these. Computed over a part of the tokens at a time, one part is alive.
#
# The log-softmax is known by its op, or by the stack; the copies are what was made right before and behind it in the
# same
# size (or that of half or twice as many bytes an element).


_FORWARD_OP = re.compile(r"aten::(_?log_softmax|cross_entropy_loss)")
_BACKWARD_OP = re.compile(r"aten::_log_softmax_backward_data")
_COPY = re.compile(r"aten::(_?to(_copy)?|copy_|clone|contiguous|float|exp|sub|div)")
_AVOIDABLE_LOSS_PRODUCT = re.compile(r"aten::(mm|addmm|bmm|linear|matmul|_scaled_mm)")
_FUNCTION = re.compile(r"cross_entropy|log_softmax", re.IGNORECASE)

MOST_APART = 1000
"""Blocks that are looked at before and behind a log-softmax: as many as some layers make."""

AVOIDABLE_LOSS_SMALL_PART = 4
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
        forward = _by_stacks_avoidable_loss(recorded, timeline) & ~backward
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


def _by_stacks_avoidable_loss(trace: Trace, timeline: MemoryTimeline) -> npt.NDArray[np.bool_]:
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
        self.product = ops.matching(_AVOIDABLE_LOSS_PRODUCT)
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
            if self.size[one] < self.size[row] // AVOIDABLE_LOSS_SMALL_PART:
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
            if self.size[one] < self.size[row] // AVOIDABLE_LOSS_SMALL_PART:
                continue
            if not self._alike(one, row):
                break
            if not (self.of_backward if self.backward[one] else self.copies)[one]:
                break
            found.append(one)
        return found

    def _alike(self, one: int, row: int) -> bool:
        return bool(same_size(self.size[one : one + 1], int(self.size[row]))[0])


# Temporaries of an optimizer that steps with lists of tensors, and gradients that outlive the step they were made
# for.
#
# A ``foreach`` optimizer makes each intermediate value for all parameters at once: one or two copies of the
# parameters
# are alive within the step. The ``fused`` one keeps none. Gradients that are cleared with zeros, or never, are alive
# through the next forward pass beside its activations; set to None they are made again when the backward pass gets
# there.


_FOREACH_OP = re.compile(r"aten::_foreach_\w+")
_FOREACH_FUNCTION = re.compile(r"_multi_tensor_\w+")
_OPTIMIZER_FILE = re.compile(r"(^|/)torch/optim/")


def optimizer_temporaries(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """What a ``foreach`` optimizer makes and frees within its step."""
    recorded, blocks = timeline.of(trace), timeline.blocks
    within = (blocks["phase"] == MemoryPhase.OPTIMIZER) & (blocks["category"] == MemoryCategory.TEMPORARY)
    if not within.any():
        return None
    # the op that asks may be another one: on the CPU the lists are worked through tensor by tensor
    lists = [code for code, text in enumerate(recorded.strings) if _FOREACH_OP.fullmatch(text)]
    inside_op = np.isin(recorded.rows["slices"]["name"], lists)
    foreach = nearest_ancestor(recorded, blocks["op"].astype(np.int64), inside_op) != MISSING
    framed = blocks["frame"] != MISSING
    if framed.any():
        masks = recorded.fact(_multi_tensor_frames)
        inside = np.zeros(len(blocks), bool)
        inside[framed] = nearest_frame(recorded, blocks["frame"][framed].astype(np.int64), masks)[0] != MISSING
        foreach |= inside
    rows = np.flatnonzero(within & foreach)
    if not len(rows):
        return None
    return Avoidable(
        kind="temporaries of the optimizer",
        said="values that the foreach optimizer makes for all parameters at once",
        advice="Use torch.optim.AdamW(model.parameters(), fused=True): it updates each parameter in one kernel and "
        "keeps no such values (SGD, Adam, AdamW and Adagrad have it); foreach=False keeps those of one parameter at a "
        "time, and takes longer",
        rows=rows,
    )


def lasting_gradients(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Gradients that are alive in the forward pass behind the optimizer's step."""
    blocks = timeline.blocks
    phases = memory_phases(trace, timeline)
    forwards = np.flatnonzero(phases.phase == MemoryPhase.FORWARD)
    backwards = np.flatnonzero(phases.phase == MemoryPhase.BACKWARD)
    optimizers = np.flatnonzero(phases.phase == MemoryPhase.OPTIMIZER)
    if not len(forwards) or not len(backwards) or len(optimizers) < len(backwards):
        return None  # several backward passes for one step add up what must not be cleared between them
    gradients = np.flatnonzero(blocks["category"] == MemoryCategory.GRADIENT)
    start, end = blocks["start"][gradients], blocks["end"][gradients]
    begins = np.concatenate((phases.starts[forwards], [NEVER]))
    finished = np.concatenate((phases.ends[backwards], [NEVER]))
    rows, until, since = [], [], []
    # between each use by the optimizer and the end of the next backward pass they would not be there
    for done in (timeline.first, *phases.ends[optimizers].tolist()):
        forward = int(begins[np.searchsorted(begins[:-1], done, side="left")])
        again = int(finished[np.searchsorted(finished[:-1], forward, side="left")])
        held = blocks["before"][gradients] if done == timeline.first else start < done
        lasting = gradients[held & (end > forward)] if forward != NEVER else gradients[:0]
        rows.append(lasting)
        until.append(np.full(len(lasting), done, np.int64))
        since.append(np.full(len(lasting), again, np.int64))
    if not any(len(one) for one in rows):
        return None
    return Avoidable(
        kind="gradients of the step before",
        said="gradients that outlive the optimizer's step",
        advice="Call optimizer.zero_grad(set_to_none=True), its default, right behind optimizer.step(): gradients are "
        "then made when the backward pass gets there, while it lets activations go",
        rows=np.concatenate(rows),
        until=np.concatenate(until),
        since=np.concatenate(since),
    )


def _multi_tensor_frames(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask over ``frames``: functions of torch's optimizers that work on lists of tensors."""
    frames = trace.rows["frames"]
    files = {code for code in np.unique(frames["file"]).tolist()
             if _OPTIMIZER_FILE.search(trace.text(code).replace("\\", "/"))}  # fmt: skip
    names = {code for code in np.unique(frames["name"]).tolist() if _FOREACH_FUNCTION.search(trace.text(code))}
    return np.asarray(np.isin(frames["file"], list(files)) & np.isin(frames["name"], list(names)))
