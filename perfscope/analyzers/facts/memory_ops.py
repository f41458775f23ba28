"""What the op that asked for a block says it is for: collectives, data loaders, copies to the device, scratch."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.facts.host_spans import input_slices
from perfscope.analyzers.facts.nesting import lineage, nearest_ancestor
from perfscope.analyzers.facts.recompute import EVALUATE
from perfscope.model.memory import Int64
from perfscope.model.trace import MISSING, CopyKind, SliceKind, Trace
from perfscope.model.trace.tables import MemoryCategory

_COLLECTIVE = re.compile(r"(c10d|nccl|gloo|fsdp|FSDP|_c10d_functional)::?.*|record_param_comms|fsdp::.*")
"""Ops and annotations around what a collective needs: ``c10d::allreduce_``, ``gloo:all_gather``,
``fsdp::all_gather_copy_in``, ``FSDP::all_gather (0)`` (seen with PyTorch 2.13)."""

_FSDP_COMPUTE = re.compile(r"FSDP::(pre|post)_(forward|backward)( .*)?")
"""FSDP2's ranges around hooks, in which collectives have ranges of their own."""

_PRODUCT = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|_addmm_activation|_scaled_mm|"
    r"(cudnn|miopen)_(convolution|rnn|batch_norm).*|_cudnn_rnn.*|mkldnn_.*)"
)
"""Ops that call a library which asks for scratch memory."""

_BLAS_SCRATCH = (4096 * 1024 * 2 + 16 * 1024 * 8, 4096 * 1024 * 8)
"""Bytes that PyTorch gives a cuBLAS handle and keeps: by default ``:4096:2:16:8``, on Hopper and later ``:4096:8``
(``parseChosenWorkspaceSize`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp``)."""

_MOVES = ("aten::to", "aten::_to_copy", "aten::pin_memory", "aten::copy_")

_HANDS_OUT = re.compile(r"aten::(new_)?(empty|zeros|ones|full|rand|randn)(_like|_strided|_quantized)?|aten::resize_")
"""Ops that hand out memory on behalf of the op around them."""


def asking_op(trace: Trace, row: int) -> str | None:
    """Name of the op that asked for a block: of a row of ``slices``, or the op around one that only hands out."""
    slices = trace.rows["slices"]
    found = None
    for outer in lineage(trace, row):
        if slices["kind"][outer] != SliceKind.OP:
            break
        name = trace.text(int(slices["name"][outer]))
        if name.startswith(EVALUATE):
            break
        found = name
        if not _HANDS_OUT.fullmatch(name):
            break
    return found or (None if row == MISSING else trace.text(int(slices["name"][row])))


def op_categories(trace: Trace, blocks: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """By block: the `MemoryCategory` that its op says, unknown for most. ``blocks``: columns of ``BLOCKS``."""
    ops = blocks["op"].astype(np.int64)
    found = np.zeros(len(ops), np.uint8)
    slices = trace.rows["slices"]
    if not len(slices) or not (ops != MISSING).any():
        return found
    named = slices["kind"] != SliceKind.PYTHON
    around = named & np.isin(slices["name"], _codes(trace, _COLLECTIVE, but=_FSDP_COMPUTE))
    found[nearest_ancestor(trace, ops, around) != MISSING] = MemoryCategory.COMMUNICATION

    loader = np.zeros(len(slices), bool)
    loader[trace.fact(input_slices)] = True
    found[(nearest_ancestor(trace, ops, loader) != MISSING) & (found == 0)] = MemoryCategory.INPUT
    found[_uploaded(trace, ops) & (found == 0)] = MemoryCategory.INPUT

    direct = (ops != MISSING) & np.isin(slices["name"][ops], _codes(trace, _PRODUCT)) & ~blocks["before"]
    brief = direct & ~blocks["after"] & (blocks["end"] <= slices["end_ns"][ops])
    kept = direct & blocks["after"] & np.isin(blocks["bytes"], _BLAS_SCRATCH)
    found[(brief | kept) & (found == 0)] = MemoryCategory.WORKSPACE
    return found


def _uploaded(trace: Trace, ops: Int64) -> npt.NDArray[np.bool_]:
    """Blocks made by a copy to the device that no module called: the batch on its way there."""
    slices, copies = trace.rows["slices"], trace.rows["copies"]
    moves = (slices["kind"] == SliceKind.OP) & np.isin(
        slices["name"], [code for code, text in enumerate(trace.strings) if text in _MOVES]
    )
    outer = _outermost(trace, ops, moves)
    up = copies["op"][(copies["kind"] == CopyKind.HOST_TO_DEVICE) & (copies["op"] != MISSING)]
    top = _outermost(trace, up.astype(np.int64), moves)
    uploads = np.zeros(len(slices), bool)
    uploads[top[top != MISSING]] = True
    modules = np.isin(
        slices["name"], [code for code, text in enumerate(trace.strings) if text.startswith("nn.Module: ")]
    )
    inside = nearest_ancestor(trace, outer, modules) != MISSING
    return np.asarray((outer != MISSING) & uploads[outer] & ~inside & bool(modules.any()))


def _outermost(trace: Trace, rows: Int64, wanted: npt.NDArray[np.bool_]) -> Int64:
    """For each row of ``slices``: its outermost enclosing span with ``wanted``, or itself; else ``MISSING``."""
    parents = trace.rows["slices"]["parent"].astype(np.int64)
    found = nearest_ancestor(trace, rows, wanted)
    while True:
        known = found != MISSING
        above = np.where(known, parents[found], MISSING)
        further = nearest_ancestor(trace, above, wanted)
        if not (further != MISSING).any():
            return found
        found = np.where(further != MISSING, further, found)


def _codes(trace: Trace, pattern: re.Pattern[str], *, but: re.Pattern[str] | None = None) -> list[int]:
    return [
        code
        for code, text in enumerate(trace.strings)
        if pattern.fullmatch(text) and not (but is not None and but.fullmatch(text))
    ]
