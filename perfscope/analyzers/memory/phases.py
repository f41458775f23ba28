"""The phases of training on a memory's axis: forward, backward, optimizer, and the gaps between them.

From host spans (torch.profiler) if available: outermost autograd nodes are the backward pass, ``Optimizer.step`` is the
optimizer; ops with an autograd sequence number outside of both, and calls of modules, are the forward pass. Otherwise
from the stacks of allocator events (memory snapshots). A phase lasts from its first mark to its last one; the time
between two phases belongs to neither.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.memory.sites import stack_phases
from perfscope.analyzers.ops import EVALUATE, OPTIMIZER_STEP, autograd_nodes
from perfscope.analyzers.spans import input_slices, lineage, named_slices, nearest_ancestor, outermost_ancestor
from perfscope.model.live_bytes import NEVER, Int64
from perfscope.model.memory import MemoryPhase
from perfscope.model.op_flops import COMPOSITE_PRODUCTS, PRODUCTS
from perfscope.model.trace import MISSING, CopyKind, SliceKind, Trace
from perfscope.model.trace.tables import MemoryCategory

_MARKS = {
    MemoryPhase.FORWARD: re.compile(r"\W*forward(_pass)?\W*", re.IGNORECASE),
    MemoryPhase.BACKWARD: re.compile(r"\W*backward(_pass)?\W*", re.IGNORECASE),
    MemoryPhase.OPTIMIZER: re.compile(r"\W*optimizer([ _]step)?\W*", re.IGNORECASE),
}
"""The user's annotations, such as ``## forward ##`` in torch's tutorials."""

_COLLECTIVE = re.compile(r"(c10d|nccl|gloo|fsdp|FSDP|_c10d_functional)::?.*|record_param_comms|fsdp::.*")
"""Ops and annotations around memory for a collective: ``c10d::allreduce_``, ``gloo:all_gather``,
``fsdp::all_gather_copy_in``, ``FSDP::all_gather (0)`` (seen with PyTorch 2.13).
"""

_FSDP_COMPUTE = re.compile(r"FSDP::(pre|post)_(forward|backward)( .*)?")
"""FSDP2's ranges around hooks, which contain separate ranges for collectives."""

_PRODUCT = re.compile(
    rf"aten::({'|'.join(PRODUCTS - COMPOSITE_PRODUCTS)}|"
    r"(cudnn|miopen)_(convolution|rnn|batch_norm).*|_cudnn_rnn.*|mkldnn_.*)"
)
"""Ops that call a library which allocates scratch memory."""

_BLAS_SCRATCH = (4096 * 1024 * 2 + 16 * 1024 * 8, 4096 * 1024 * 8)
"""Bytes that PyTorch allocates for a cuBLAS handle and keeps: by default ``:4096:2:16:8``, on Hopper and later
``:4096:8`` (``parseChosenWorkspaceSize`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp``).
"""

_MOVES = ("aten::to", "aten::_to_copy", "aten::pin_memory", "aten::copy_")

_HANDS_OUT = re.compile(r"aten::(new_)?(empty|zeros|ones|full|rand|randn)(_like|_strided|_quantized)?|aten::resize_")
"""Ops that allocate memory on behalf of the enclosing op."""


class Phases(Struct, frozen=True, kw_only=True):
    """Segments in order, without overlaps or equal neighbours. Shapes (n,)."""

    starts: Int64
    ends: Int64
    phase: npt.NDArray[np.uint8]
    modules: Int64
    """Sorted begins of outermost module calls; empty if module calls were not recorded."""
    whole: npt.NDArray[np.bool_]
    """Whether the end is known from a span; from stacks only the last allocation is known."""
    again_ends: Int64
    """Sorted ends of recomputed work, if known only from stacks."""

    def segment_at(self, positions: Int64) -> Int64:
        """Return the segment that contains each position, else ``MISSING``."""
        index = np.searchsorted(self.starts, positions, side="right") - 1
        inside = (index >= 0) & (positions < self.ends[np.maximum(index, 0)]) if len(self.starts) else index >= 0
        return np.where(inside, index, MISSING)

    def phase_at(self, positions: Int64) -> npt.NDArray[np.uint8]:
        """Return the `MemoryPhase` of each position; unknown between segments."""
        segment = self.segment_at(positions)
        if not len(self.starts):
            return np.zeros(len(positions), np.uint8)
        return np.where(segment == MISSING, np.uint8(MemoryPhase.UNKNOWN), self.phase[segment])

    def next_start(self, positions: Int64, phase: MemoryPhase) -> Int64:
        """Return the begin of the next segment of ``phase`` after each position; ``NEVER`` without one."""
        return following(self.starts[self.phase == phase], positions)

    def behind_module(self, positions: Int64) -> npt.NDArray[np.bool_]:
        """Whether a module has been called in the segment that contains a position; False between segments."""
        segment = self.segment_at(positions)
        begun = np.where(segment == MISSING, positions + 1, self.starts[segment])
        return np.asarray(np.searchsorted(self.modules, positions, side="right") > np.searchsorted(self.modules, begun))


def following(marks: Int64, positions: Int64) -> Int64:
    """Return the first of the sorted ``marks`` after each position; `NEVER` without one."""
    marks_after: Int64 = np.concatenate((marks, [NEVER]))[np.searchsorted(marks, positions, side="right")]
    return marks_after


NO_PHASES = Phases(
    starts=np.empty(0, np.int64),
    ends=np.empty(0, np.int64),
    phase=np.empty(0, np.uint8),
    modules=np.empty(0, np.int64),
    whole=np.empty(0, bool),
    again_ends=np.empty(0, np.int64),
)


def span_phases(trace: Trace) -> Phases:
    """Return the phases from the host spans of a trace, on its clock."""
    slices = trace.rows["slices"]
    if not len(slices):
        return NO_PHASES
    parents = slices["parent"].astype(np.int64)
    is_op = slices["kind"] == SliceKind.OP
    annotated = {
        phase: named_slices(trace, pattern.fullmatch) & (slices["kind"] == SliceKind.ANNOTATION)
        for phase, pattern in _MARKS.items()
    }
    nodes = trace.fact(autograd_nodes)
    stepped = named_slices(trace, lambda name: name.startswith(OPTIMIZER_STEP))
    optimizer = (stepped & (slices["kind"] != SliceKind.PYTHON)) | annotated[MemoryPhase.OPTIMIZER]
    backward = nodes | annotated[MemoryPhase.BACKWARD]
    modules = trace.fact(module_calls)
    graphed = is_op & (slices["sequence"] != MISSING) & (slices["forward_thread"] <= 0) & ~nodes
    forward = modules | graphed | annotated[MemoryPhase.FORWARD]

    taken = nearest_ancestor(trace, parents, optimizer | backward) != MISSING
    around = nearest_ancestor(trace, parents, forward) != MISSING
    inner = nearest_ancestor(trace, parents, modules) != MISSING
    outermost = {
        MemoryPhase.OPTIMIZER: np.flatnonzero(optimizer & ~taken),
        MemoryPhase.BACKWARD: np.flatnonzero(backward & ~optimizer & ~taken),
        MemoryPhase.FORWARD: np.flatnonzero(forward & ~optimizer & ~backward & ~taken & ~around),
    }
    rows = np.concatenate(list(outermost.values()))
    phase = np.repeat(list(outermost), [len(rows_of_phase) for rows_of_phase in outermost.values()])
    outermost_calls = modules & ~taken & ~inner
    return _merged(
        slices["start_ns"][rows],
        slices["end_ns"][rows],
        phase.astype(np.uint8),
        np.ones(len(rows), bool),
        np.sort(slices["start_ns"][outermost_calls]),
    )


def module_calls(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``slices`` that are calls of an ``nn.Module`` in Python spans."""
    called = named_slices(trace, lambda name: name.startswith("nn.Module: "))
    return np.asarray(called & (trace.rows["slices"]["kind"] == SliceKind.PYTHON))


def event_phases(trace: Trace, events: Int64, positions: Int64, *, spans: Phases | None = None) -> Phases:
    """Return the phases from the stacks of allocator events: rows of ``memory`` and their positions on the axis.

    ``spans``: phases known from spans on the same axis; stacks fill the rest.
    """
    frames = trace.rows["memory"]["frame"][events]
    phase = np.zeros(len(events), np.uint8)
    known = frames != MISSING
    phase[known] = trace.fact(stack_phases)[frames[known]]
    marked = np.flatnonzero(phase != MemoryPhase.UNKNOWN)
    again = phase[marked] == MemoryPhase.RECOMPUTE
    ending = again.copy()
    ending[:-1] &= ~again[1:]
    # forward work inside the backward pass does not end it
    within = np.where(again, np.uint8(MemoryPhase.BACKWARD), phase[marked]).astype(np.uint8)
    marked_positions = positions[marked]
    # a snapshot may have ranges in addition to stacks, such as those of the optimizer
    free = marked_positions if spans is None else marked_positions[spans.segment_at(marked_positions) == MISSING]
    free_phase = within if spans is None else within[spans.segment_at(marked_positions) == MISSING]
    spans = spans or NO_PHASES
    merged = _merged(
        np.concatenate((spans.starts, free)),
        np.concatenate((spans.ends, free + 1)),
        np.concatenate((spans.phase, free_phase)),
        np.concatenate((spans.whole, np.zeros(len(free), bool))),
        spans.modules,
    )
    return replace(merged, again_ends=marked_positions[ending] + 1)


def _merged(
    starts: Int64, ends: Int64, phase: npt.NDArray[np.uint8], whole: npt.NDArray[np.bool_], modules: Int64
) -> Phases:
    """Return marks as segments: equal neighbours are merged, and a segment ends at the latest when the next begins."""
    if not len(starts):
        return NO_PHASES
    order = np.argsort(starts, kind="stable")
    starts, ends, phase, whole = starts[order], ends[order], phase[order], whole[order]
    new = np.ones(len(starts), bool)
    new[1:] = phase[1:] != phase[:-1]
    first = np.flatnonzero(new)
    until = np.maximum.reduceat(ends, first)
    until[:-1] = np.minimum(until[:-1], starts[first][1:])
    return replace(
        NO_PHASES,
        starts=starts[first],
        ends=until,
        phase=phase[first],
        modules=modules,
        whole=np.logical_or.reduceat(whole, first),
    )


# Purpose of a block by the op that allocated it: collectives, data loaders, copies to the device, scratch.


def allocating_op(trace: Trace, row: int) -> str | None:
    """Return the name of the op that allocated a block: of a row of ``slices``, or that around an allocation op."""
    slices = trace.rows["slices"]
    around_allocation = None
    for outer in lineage(trace, row):
        if slices["kind"][outer] != SliceKind.OP:
            break
        name = trace.text(int(slices["name"][outer]))
        if name.startswith(EVALUATE):
            break
        around_allocation = name
        if not _HANDS_OUT.fullmatch(name):
            break
    return around_allocation or (None if row == MISSING else trace.text(int(slices["name"][row])))


class AllocatingOps(Struct, frozen=True):
    """The op that allocated each block. ``codes``: shape (blocks,), into ``names``; ``MISSING`` if unknown."""

    codes: Int64
    names: tuple[str, ...]

    def matching(self, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
        """Mask of the blocks whose op's whole name matches."""
        alike = [code for code, name in enumerate(self.names) if pattern.fullmatch(name)]
        return np.asarray(np.isin(self.codes, alike))


def allocating_ops(trace: Trace, ops: Int64) -> AllocatingOps:
    """Return `allocating_op` of many blocks, by their rows of ``slices``; each name has one code."""
    distinct, inverse = np.unique(ops, return_inverse=True)
    numbers: dict[str, int] = {}
    codes = []
    for row in distinct.tolist():
        name = allocating_op(trace, row)
        codes.append(numbers.setdefault(name, len(numbers)) if name else MISSING)
    return AllocatingOps(np.array(codes, np.int64)[inverse], tuple(numbers))


def op_categories(trace: Trace, blocks: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """Return the `MemoryCategory` of each block by its op, mostly unknown. ``blocks``: columns of ``BLOCKS``."""
    ops = blocks["op"].astype(np.int64)
    categories = np.zeros(len(ops), np.uint8)
    slices = trace.rows["slices"]
    if not len(slices) or not (ops != MISSING).any():
        return categories
    named = slices["kind"] != SliceKind.PYTHON
    around = named & named_slices(trace, lambda name: _COLLECTIVE.fullmatch(name) and not _FSDP_COMPUTE.fullmatch(name))
    categories[nearest_ancestor(trace, ops, around) != MISSING] = MemoryCategory.COMMUNICATION

    loader = np.zeros(len(slices), bool)
    loader[trace.fact(input_slices)] = True
    categories[(nearest_ancestor(trace, ops, loader) != MISSING) & (categories == 0)] = MemoryCategory.INPUT
    categories[_uploaded(trace, ops) & (categories == 0)] = MemoryCategory.INPUT

    direct = (ops != MISSING) & named_slices(trace, _PRODUCT.fullmatch)[ops] & ~blocks["before"]
    brief = direct & ~blocks["after"] & (blocks["end"] <= slices["end_ns"][ops])
    kept = direct & blocks["after"] & np.isin(blocks["bytes"], _BLAS_SCRATCH)
    categories[(brief | kept) & (categories == 0)] = MemoryCategory.WORKSPACE
    return categories


def _uploaded(trace: Trace, ops: Int64) -> npt.NDArray[np.bool_]:
    """Mask of the blocks made by a copy to the device outside of all modules: batches."""
    slices, copies = trace.rows["slices"], trace.rows["copies"]
    moves = (slices["kind"] == SliceKind.OP) & named_slices(trace, _MOVES.__contains__)
    outer = outermost_ancestor(trace, ops, moves)
    up = copies["op"][(copies["kind"] == CopyKind.HOST_TO_DEVICE) & (copies["op"] != MISSING)]
    top = outermost_ancestor(trace, up.astype(np.int64), moves)
    uploads = np.zeros(len(slices), bool)
    uploads[top[top != MISSING]] = True
    modules = trace.fact(module_calls)
    inside = nearest_ancestor(trace, outer, modules) != MISSING
    return np.asarray((outer != MISSING) & uploads[outer] & ~inside & bool(modules.any()))
