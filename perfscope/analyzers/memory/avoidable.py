"""Effect of avoiding some blocks on the peak of a memory: an exact replay, and an upper bound of the saving.

All blocks of a kind are removed in every step of the recording, because otherwise another step would hold the peak. The
replacement (a chunk of the logits, a gradient made later) needs memory too, so the saving is an upper bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.memory.categories import memory_phases, with_graph
from perfscope.analyzers.memory.holders import line_of
from perfscope.analyzers.memory.phases import AllocatingOps, allocating_op, allocating_ops, following
from perfscope.analyzers.memory.sites import frames_named, is_optimizer_file, nearest_frame, user_frames
from perfscope.analyzers.ops import EVALUATE, trace_attentions
from perfscope.analyzers.spans import named_slices, nearest_ancestor
from perfscope.analyzers.time import graph_op, steps_at
from perfscope.model.finding import MOST_ROWS, Cell
from perfscope.model.live_bytes import NEVER, Int64
from perfscope.model.memory import ALLOCATION_ROUNDING, MemoryPhase, MemoryTimeline
from perfscope.model.op_flops import BATCHED_PRODUCTS, PRODUCTS
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.trace.tables import MemoryCategory

if TYPE_CHECKING:
    from perfscope.model.op_graph import OpGraph

_SOFTMAX = re.compile(r"(?<!log_)(?<!log)softmax", re.IGNORECASE)

_ATTENTION = re.compile(r"attention|attn|sdpa", re.IGNORECASE)

_CATEGORIES = (MemoryCategory.ACTIVATION, MemoryCategory.TEMPORARY, MemoryCategory.UNKNOWN)

_ELSEWHERE = (MemoryPhase.BACKWARD, MemoryPhase.OPTIMIZER)

_PRODUCT = re.compile(rf"aten::({'|'.join(BATCHED_PRODUCTS)})")

SMALL_PART = 8
"""Blocks smaller than the largest block of an attention divided by this are ignored: a boolean mask takes a quarter of
float32 scores, row sums and maxima take less.
"""

_FORWARD_OP = re.compile(r"aten::(_?log_softmax|cross_entropy_loss)")

_BACKWARD_OP = re.compile(r"aten::_log_softmax_backward_data")

_COPY = re.compile(r"aten::(_?to(_copy)?|copy_|clone|contiguous|float|exp|sub|div)")

_HEAD_PRODUCT = re.compile(rf"aten::({'|'.join(PRODUCTS)})")

_FUNCTION = re.compile(r"cross_entropy|log_softmax", re.IGNORECASE)

MOST_APART = 1000
"""Maximum number of blocks examined before and after a log-softmax: as many as some layers make."""

SMALL_BLOCK = 4
"""Blocks smaller than the logits' size divided by this may be between the copies without ending the sequence."""

ADVICE = (
    "Compute head and loss over a part of the tokens at a time, so that only one part's logits are alive. "
    "Write sum(torch.utils.checkpoint.checkpoint(loss_of, x, y, use_reentrant=False) for x, y in zip(x_TD.chunk(8), "
    "y_T.chunk(8))) with loss_of = lambda x, y: F.cross_entropy(head(x), y, reduction='sum'); or a fused linear "
    "cross-entropy (Liger), which makes no logits"
)

_FOREACH_OP = re.compile(r"aten::_foreach_\w+")

_FOREACH_FUNCTION = re.compile(r"_multi_tensor_\w+")

_NEEDED = (MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE, MemoryCategory.WORKSPACE,
           MemoryCategory.COMMUNICATION)  # fmt: skip
"""Categories whose blocks are needed longer than the recorded uses show."""

UNREAD = "values that are not read any more"
OLD_GRADIENTS = "gradients of the step before"
"""Kind of the blocks that `held_unread` finds."""


class Avoidable(Struct, frozen=True, kw_only=True):
    """Blocks of one kind that are not needed at the peak, or at all."""

    kind: str
    """Short and without numbers: ``temporaries of the optimizer``."""
    title: str
    """Contents of the blocks in a few words."""
    description: str
    """Subject of the sentence about the peak: ``logits and their copies``."""
    advice: str
    rows: Int64
    """Rows of the timeline's ``blocks``, in all steps; a block with several unneeded intervals is listed several times.
    """
    until: Int64 | None = None
    """Positions until which each block is needed; None if it is not needed at all."""
    since: Int64 | None = None
    """Positions from which each block is needed again, after a gap that begins at ``until``."""


class Replayed(Struct, frozen=True, kw_only=True):
    """An `Avoidable` with its effect on the peak. Bytes."""

    avoidable: Avoidable
    held_bytes: int
    """Bytes of unneeded blocks at the peak."""
    blocks: Int64
    """Rows of these blocks, largest first."""
    saved_bytes: int
    peak_bytes: int


def replayed(timeline: MemoryTimeline, avoidable: Avoidable) -> Replayed:
    """Return the peak of ``timeline`` without its avoidable blocks."""
    position, peak = timeline.peak()
    blocks = timeline.blocks
    start, end = blocks["start"][avoidable.rows], blocks["end"][avoidable.rows]
    begin = start if avoidable.until is None else np.clip(avoidable.until, start, end)
    stop = end if avoidable.since is None else np.clip(avoidable.since, begin, end)
    size = blocks["bytes"][avoidable.rows].astype(np.int64)
    gone = (begin <= position) & (stop > position)
    held_rows = avoidable.rows[gone]
    _, lowered = timeline.live().plus(begin, stop, -size).peak()
    return Replayed(
        avoidable=avoidable,
        held_bytes=int(size[gone].sum()),
        blocks=held_rows[np.argsort(-blocks["bytes"][held_rows], kind="stable")],
        saved_bytes=peak - lowered,
        peak_bytes=peak,
    )


def same_size(sizes: Int64, of: int) -> npt.NDArray[np.bool_]:
    """Whether sizes equal, within rounding, ``of`` bytes, or those of as many elements with half or twice the bytes."""
    alike = np.zeros(len(sizes), bool)
    for wanted in (of, of // 2, 2 * of):
        alike |= np.abs(sizes - wanted) < ALLOCATION_ROUNDING
    return alike


def block_rows(trace: Trace, timeline: MemoryTimeline, rows: Int64) -> tuple[Mapping[str, Cell], ...]:
    """Return evidence: one row per line, op and name, most bytes first."""
    groups: dict[tuple[str | None, int | None, str | None, str | None], list[int]] = {}
    for row in rows.tolist():
        line = line_of(timeline, row)
        op = allocating_op(trace, int(timeline.blocks["op"][row]))
        name = (
            timeline.text(int(timeline.blocks["name"][row]))
            or timeline.text(int(timeline.blocks["module"][row]))
            or None
        )
        key = (None if line is None else line.file, None if line is None else line.line, op, name)
        sums = groups.setdefault(key, [0, 0])
        sums[0] += int(timeline.blocks["bytes"][row])
        sums[1] += int(timeline.blocks["count"][row])
    ordered = sorted(groups.items(), key=lambda group: -group[1][0])[:MOST_ROWS]
    return tuple(
        {"held_bytes": size, "blocks": count, "file": file, "line": line, "op": op, "name": name}
        for (file, line, op, name), (size, count) in ordered
    )


# Attention scores that are written to memory and kept for the backward pass: they grow with the square of the sequence.


def attention_scores(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Return the blocks with scores, weights or masks of unfused attention, and the gradients of these."""
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
        title="attention scores, weights and masks",
        description="attention scores, weights and masks",
        advice="Call torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True). It keeps one number "
        "per query in place of a row of scores, and computes the scores again in the backward pass",
        rows=rows,
    )


def _by_ops(trace: Trace, timeline: MemoryTimeline, candidates: Int64) -> Int64:
    attentions = trace.fact(trace_attentions) if "shapes" in trace.recorded else ()
    inside = np.zeros(len(trace.rows["slices"]), bool)
    for attention in attentions:
        inside[list(attention.ops)] = True  # including those of the backward pass
    if not inside.any():
        return np.empty(0, np.int64)
    ops = timeline.blocks["op"][candidates].astype(np.int64)
    chosen = nearest_ancestor(trace, ops, inside) != MISSING
    size = timeline.blocks["bytes"][candidates].astype(np.int64)
    products = allocating_ops(trace, ops).matching(_PRODUCT)
    return candidates[_with_sizes(chosen, size, products)]


def _by_stacks(trace: Trace, timeline: MemoryTimeline, candidates: Int64) -> Int64:
    blocks = timeline.blocks
    frames = blocks["frame"][candidates].astype(np.int64)
    if not (frames != MISSING).any():
        return candidates[:0]
    elsewhere = np.isin(blocks["phase"][candidates], _ELSEWHERE)
    softmax, attention = frames_named(trace, _SOFTMAX), frames_named(trace, _ATTENTION)
    outer = nearest_frame(trace, nearest_frame(trace, frames, softmax)[0], attention)[0]
    scores = (outer != MISSING) & ~elsewhere
    if not scores.any():
        return candidates[:0]
    size = blocks["bytes"][candidates].astype(np.int64)
    # made by the functions themselves, not by a module that they call
    user = np.where(frames == MISSING, MISSING, trace.fact(user_frames)[frames])
    own = (user != MISSING) & (attention[user] | softmax[user]) & ~elsewhere
    chosen = _with_sizes(scores, size, own)
    # the backward pass lacks their frames: it is identified by sizes that only they have in the forward pass
    others = np.unique(size[~chosen & ~elsewhere])
    return candidates[_with_sizes(chosen, size, elsewhere & ~np.isin(size, others))]


def _with_sizes(scores: npt.NDArray[np.bool_], size: Int64, others: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return ``scores`` and the blocks of ``others`` with equal sizes; small blocks are excluded."""
    if not scores.any():
        return scores
    large = size >= int(size[scores].max()) // SMALL_PART
    chosen = scores & large
    for wanted in np.unique(size[chosen]).tolist():
        chosen |= others & large & same_size(size, wanted)
    return chosen


# Logits and their copies: a number per token and word of the vocabulary, several times. The log-softmax is identified
# by its op or by the stack; copies are blocks of the same size (or with half or twice as many bytes per element) made
# right before and after it.


def loss_copies(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Return the blocks with logits, their copies, and the gradients of these."""
    recorded, blocks = timeline.of(trace), timeline.blocks
    ops = allocating_ops(recorded, blocks["op"])
    backward = np.isin(blocks["phase"], (MemoryPhase.BACKWARD, MemoryPhase.OPTIMIZER))
    forward = ops.matching(_FORWARD_OP) & ~backward
    if not forward.any():
        named = frames_named(recorded, _FUNCTION)
        forward = (nearest_frame(recorded, blocks["frame"], named)[0] != MISSING) & ~backward
    size = blocks["bytes"].astype(np.int64)
    softmax = np.flatnonzero(forward & ~blocks["before"])
    if not len(softmax):
        return None
    # the largest: a block with one number per token is the loss itself
    softmax = softmax[same_size(size[softmax], int(size[softmax].max()))]
    chosen = np.zeros(len(blocks), bool)
    chosen[softmax] = True
    around = _Around(timeline, ops, size)
    for row in softmax.tolist():
        chosen[around.ahead(row)] = True
        chosen[around.behind(row)] = True
    return Avoidable(
        kind="logits and their copies",
        title="logits, their copies and gradients",
        description="logits, their copies in the loss, and the gradients of these",
        advice=ADVICE,
        rows=np.flatnonzero(chosen),
    )


class _Around:
    """The blocks before and after a log-softmax, by start."""

    def __init__(self, timeline: MemoryTimeline, ops: AllocatingOps, size: Int64) -> None:
        self.size = size
        self.before = timeline.blocks["before"]
        self.backward = timeline.blocks["phase"] == MemoryPhase.BACKWARD
        self.product = ops.matching(_HEAD_PRODUCT)
        copies = (ops.codes == MISSING) | ops.matching(_COPY)
        self.of_forward = copies | self.product | ops.matching(_FORWARD_OP)
        self.copies = copies
        self.of_backward = copies | ops.matching(_BACKWARD_OP)

    def ahead(self, row: int) -> list[int]:
        """Return the logits: equal-sized blocks right before it, copies first, a single product last."""
        rows: list[int] = []
        for candidate in range(row - 1, max(-1, row - 1 - MOST_APART), -1):
            if self.before[candidate]:
                break
            if self.size[candidate] < self.size[row] // SMALL_BLOCK:
                continue
            if not self._alike(candidate, row) or not self.of_forward[candidate]:
                break
            rows.append(candidate)
            if self.product[candidate]:
                break
        return rows

    def behind(self, row: int) -> list[int]:
        """Return the gradients: equal-sized blocks at the begin of the backward pass after it."""
        rows: list[int] = []
        for candidate in range(row + 1, min(len(self.size), row + 1 + MOST_APART)):
            if self.size[candidate] < self.size[row] // SMALL_BLOCK:
                continue
            if not self._alike(candidate, row):
                break
            if not (self.of_backward if self.backward[candidate] else self.copies)[candidate]:
                break
            rows.append(candidate)
        return rows

    def _alike(self, candidate: int, row: int) -> bool:
        return bool(same_size(self.size[candidate : candidate + 1], int(self.size[row]))[0])


# Temporaries of an optimizer that works on lists of tensors, and gradients that outlive their step.


def optimizer_temporaries(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Return the blocks that a ``foreach`` optimizer makes and frees within its step."""
    recorded, blocks = timeline.of(trace), timeline.blocks
    within = (blocks["phase"] == MemoryPhase.OPTIMIZER) & (blocks["category"] == MemoryCategory.TEMPORARY)
    if not within.any():
        return None
    # the allocating op may differ: on the CPU the lists are processed tensor by tensor
    inside_op = nearest_ancestor(recorded, blocks["op"], named_slices(recorded, _FOREACH_OP.fullmatch)) != MISSING
    inside_function = nearest_frame(recorded, blocks["frame"], _multi_tensor_frames(recorded))[0] != MISSING
    rows = np.flatnonzero(within & (inside_op | inside_function))
    if not len(rows):
        return None
    return Avoidable(
        kind="temporaries of the optimizer",
        title="values of the foreach optimizer",
        description="values that the foreach optimizer makes for all parameters at once",
        advice="Use torch.optim.AdamW(model.parameters(), fused=True). It updates each parameter in one kernel and "
        "keeps no such values (SGD, Adam, AdamW and Adagrad support it); foreach=False keeps those of one parameter at "
        "a time, and takes longer",
        rows=rows,
    )


def lasting_gradients(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Return the gradients that are live in the forward pass after the optimizer's step."""
    blocks = timeline.blocks
    phases = memory_phases(trace, timeline)
    forwards = np.flatnonzero(phases.phase == MemoryPhase.FORWARD)
    backwards = np.flatnonzero(phases.phase == MemoryPhase.BACKWARD)
    optimizers = np.flatnonzero(phases.phase == MemoryPhase.OPTIMIZER)
    if not len(forwards) or not len(backwards) or len(optimizers) < len(backwards):
        return None  # several backward passes per step accumulate gradients, which must not be cleared between them
    gradients = np.flatnonzero(blocks["category"] == MemoryCategory.GRADIENT)
    start, end = blocks["start"][gradients], blocks["end"][gradients]
    begins = np.concatenate((phases.starts[forwards], [NEVER]))
    finished = np.concatenate((phases.ends[backwards], [NEVER]))
    # they are not needed between their use by the optimizer and the end of the next backward pass
    done = np.unique(np.concatenate(([timeline.first], phases.ends[optimizers])))
    forward = begins[np.searchsorted(begins[:-1], done, side="left")]
    again = finished[np.searchsorted(finished[:-1], forward, side="left")]
    used = np.where(blocks["before"][gradients], 0, np.searchsorted(done, start, side="right"))
    reached = np.searchsorted(forward[forward != NEVER], end, side="left")
    times = np.maximum(reached - used, 0)
    if not times.any():
        return None
    gap = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times - used, times)
    return Avoidable(
        kind=OLD_GRADIENTS,
        title="gradients kept after the optimizer's step",
        description="gradients that outlive the optimizer's step",
        advice="Call optimizer.zero_grad(set_to_none=True), its default, right after optimizer.step(). Gradients are "
        "then made when the backward pass gets there, while it lets activations go",
        rows=np.repeat(gradients, times),
        until=done[gap],
        since=again[gap],
    )


def _multi_tensor_frames(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``frames`` that are functions of torch's optimizers on lists of tensors."""
    files = trace.rows["frames"]["file"]
    own = [code for code in np.unique(files).tolist() if is_optimizer_file(trace.text(code))]
    return frames_named(trace, _FOREACH_FUNCTION) & np.isin(files, own)


# Memory that is held although nothing reads it any more, from two sources.
#
# The op graph of a step has the last op that reads a storage; a storage that lives longer is held by a variable, a list
# or a closure of the program. If several steps were recorded, a block made in the forward pass of one step and freed in
# the next step is unneeded once the next step makes its own.


def held_unread(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Return the blocks that outlive the last op that reads them, by the op graph of a step."""
    if trace.op_graph is None or trace.op_graph.storages is None or timeline.axis != "ns":
        return None
    joined = with_graph(trace, timeline.of(trace))
    steps = steps_at(joined, joined.rows["slices"]["start_ns"])
    ends = _ends(joined, steps)
    blocks = timeline.blocks
    last_use = _last_uses(trace.op_graph)
    rows, until = [], []
    free = ~np.isin(blocks["category"], (*_NEEDED, MemoryCategory.GRADIENT))  # gradients are freed together after use
    free &= blocks["phase"] != MemoryPhase.BACKWARD  # values inside a formula of autograd, which no program can release
    candidates = np.flatnonzero(~blocks["before"] & free & (blocks["op"] != MISSING))
    for row in candidates.tolist():
        op = graph_op(joined, int(blocks["op"][row]))
        if op is None:
            continue
        storages = {trace.op_graph.tensors[tensor].storage for tensor in op.outputs}
        made = [
            storage
            for storage in storages
            if trace.op_graph.storages[storage].born == op.index
            and abs(trace.op_graph.storages[storage].bytes - int(blocks["bytes"][row])) < ALLOCATION_ROUNDING
        ]
        step = int(steps[blocks["op"][row]])
        if not made or step == MISSING:
            continue
        last = max(last_use[storage] for storage in made)
        end = ends.get((step, last))
        if end is not None and end < int(blocks["end"][row]):
            rows.append(row)
            until.append(max(end, int(blocks["start"][row])))
    if not rows:
        return None
    trains = any(op.phase == "backward" for op in trace.op_graph.ops)
    return Avoidable(
        kind=UNREAD,
        title="values that no op reads again",
        description="values that no op reads again before they are let go",
        advice=_UNREAD_ADVICE if trains and not _ends_in_forward(trace, timeline, rows) else _DEL_ADVICE,
        rows=np.array(rows, np.int64),
        until=np.array(until, np.int64),
    )


_UNREAD_ADVICE = (
    "Release them before the backward pass: return the loss alone from the function that computes it. Or del the "
    "variable (logits, hidden states, outputs of a module with hooks) after its last use"
)
_DEL_ADVICE = (
    "del the variable after its last use, or compute the value where it is read: a variable of a function holds its "
    "value until the function returns"
)


def _ends_in_forward(trace: Trace, timeline: MemoryTimeline, rows: list[int]) -> bool:
    """Whether most bytes of the blocks are freed before the next backward pass begins."""
    blocks = timeline.blocks
    backward = memory_phases(trace, timeline).next_start(blocks["start"][rows], MemoryPhase.BACKWARD)
    sizes = blocks["bytes"][rows]
    return bool(2 * sizes[(backward != NEVER) & (blocks["end"][rows] <= backward)].sum() > sizes.sum())


def kept_into_next_step(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Return the blocks of one step's forward pass that are freed in the next step, after that has made its own."""
    blocks = timeline.blocks
    phases = memory_phases(trace, timeline)
    forward = np.sort(phases.starts[phases.phase == MemoryPhase.FORWARD])
    optimizer = np.sort(phases.ends[phases.phase == MemoryPhase.OPTIMIZER])
    if not len(forward) or not len(optimizer):
        return None
    made = np.flatnonzero(
        ~blocks["before"] & ~blocks["after"] & ~np.isin(blocks["category"], (*_NEEDED, MemoryCategory.GRADIENT))
        & np.isin(blocks["phase"], (MemoryPhase.FORWARD, MemoryPhase.UNKNOWN))
    )  # fmt: skip
    start, end = blocks["start"][made], blocks["end"][made]
    done = following(optimizer, start - 1)
    again = following(forward, np.minimum(done, NEVER - 1) - 1)
    kept = (done != NEVER) & (again != NEVER) & (end > again)
    # a block that lives into a third step is a buffer of the program, not a leftover
    third = following(optimizer, np.minimum(again, NEVER - 1) - 1)
    kept &= end <= third
    carried = _carried_on(trace)
    if carried:
        carried_lines = {index for index, line in enumerate(timeline.lines) if (line.file, line.line) in carried}
        kept &= ~np.isin(blocks["line"][made], list(carried_lines))
    if not kept.any():
        return None
    return Avoidable(
        kind="values of the step before",
        title="values of the step before",
        description="values of the step before that are kept into the next forward pass",
        advice="Release them: del loss, logits, batch after optimizer.step(), or put the body of the loop into a "
        "function. "
        "It returns loss.detach() alone. Unless the next step reads them as its state, a variable of the "
        "loop holds them until it is assigned again",
        rows=made[kept],
        until=done[kept],
    )


def _carried_on(trace: Trace) -> set[tuple[str, int | None]]:
    """Return the lines that read values of an earlier step, by the op graph: ``h = f(h)`` carries its value on."""
    graph = trace.op_graph
    if graph is None or graph.storages is None:
        return set()
    lines = set()
    for op in graph.ops:
        read = {graph.tensors[tensor].storage for tensor in op.inputs}
        if op.file is not None and any(graph.storages[storage].born is None for storage in read - graph.parameters):
            lines.add((op.file, op.line))
    return lines


def _last_uses(graph: OpGraph) -> dict[int, int]:
    """Map each storage to the index of the last op that reads, writes or makes it."""
    last_uses: dict[int, int] = {}
    for op in graph.ops:
        for tensor in (*op.inputs, *op.outputs, *op.mutated):
            last_uses[graph.tensors[tensor].storage] = op.index
    return last_uses


def _ends(trace: Trace, steps: Int64) -> dict[tuple[int, int], int]:
    """Map (step, index of the graph's op) to the end of that op in the recording. ``steps``: by row of ``slices``.

    An op of the backward pass ends with its autograd node, because the node holds the saved tensors while it runs.
    """
    slices = trace.rows["slices"]
    nodes = named_slices(trace, lambda name: name.startswith(EVALUATE))
    node = nearest_ancestor(trace, np.arange(len(slices)), nodes)
    ends: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero((slices["kind"] == SliceKind.OP) & (steps != MISSING)).tolist():
        op = graph_op(trace, row)
        if op is not None:
            key = int(steps[row]), op.index
            last = row if node[row] == MISSING else int(node[row])
            ends[key] = max(ends.get(key, 0), int(slices["end_ns"][last]))
    return ends
