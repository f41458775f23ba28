"""The op graph of one step: what ran below autograd, on which storages, from which line.

Written by the structure pass of ``perfscope run`` (``profiler/torch/op_graph/``) as
``structure.opgraph.json`` and read by ``readers/op_graph.py``. It carries no times.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

OP_GRAPH_SCHEMA = "perfscope.op_graph/1"

Phase = Literal["forward", "backward", "optimizer", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTensor:
    """A tensor as an op saw it. ``storage`` is unique in the graph: ids of freed storages are not reused."""

    storage: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    """Bytes that reading all its elements once moves (elements times item size, expanded dimensions once)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOp:
    """One dispatched op. Indices point into ``OpGraph.tensors``."""

    index: int
    name: str
    """Overload name, such as ``aten.add.Tensor``."""
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    mutated: tuple[int, ...]
    """Inputs whose storage the op writes (in place, out=, foreach)."""
    pointwise: bool
    reduction: bool
    view: bool
    """True if it moves no bytes: a view, a metadata read or an allocation."""
    flops: int | None
    """None: no formula for this op. Zero is a statement, not a default."""
    module: str
    """Qualified name of the innermost ``nn.Module`` (backward: of the forward op), or ``''``."""
    file: str | None
    line: int | None
    """The user's line: innermost frame outside torch and perfscope (backward: of the forward op)."""
    function: str | None
    sequence: int | None
    """Autograd sequence number that joins a forward op with its backward ops."""
    host_read: str | None = None
    """Why an accelerator would stall the host here (``item``, ``nonzero``, ``bool``, ``check`` ...), else None."""
    recompute: bool = False
    """True for a forward op that activation checkpointing runs again (phase ``backward``)."""
    checkpoint_file: str | None = None
    """File of the user's call of the innermost checkpoint around the op; of a recomputed op, that of its forward pass.
    None: no checkpoint, or an older recording."""
    checkpoint_line: int | None = None
    checks: bool = False
    """True if it checks the arguments of a distribution of ``torch.distributions``; False in older recordings."""

    loop_file: str | None = None
    """File of the innermost Python loop around the op outside of torch; None: no loop, or an older recording."""
    loop_line: int | None = None
    """Line of its ``for`` or ``while``."""
    declared_bytes: int | None = None
    """Bytes that it moves as its author declared (`model/kernel_cost.py`); None: not declared."""
    declared_dtype: str | None = None
    """dtype of its FLOPs as declared; None: that of its operands."""

    @property
    def checkpoint(self) -> tuple[str, int] | None:
        """File and line of that call."""
        file, line = self.checkpoint_file, self.checkpoint_line
        return None if file is None or line is None else (file, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStorage:
    """The memory after tensors. It is held for ops ``born`` to ``died``, half open."""

    bytes: int
    """Requested size, before an allocator rounds; for a resized storage, the largest size seen."""
    born: int | None
    """Index of the op that made it. None: it existed before the step, or was made outside of ops
    (``torch.from_numpy``)."""
    died: int | None
    """Index of the op before which it was freed (the number of ops: after the last one). None: it outlives the
    step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Token ids that an embedding of the step looked up."""

    op: int
    """Index of the embedding."""
    rows: int
    length: int
    """Ids of each row, with padding."""
    filled: int
    """Ids of all rows that are not padding."""
    longest: int
    """Ids of the longest row without its padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """Ops in execution order, the tensors they touch, and the storages that outlive the step."""

    step: int
    device: str
    """Device of the program's tensors: ``cpu``, ``cuda`` ..."""
    ops: tuple[GraphOp, ...]
    tensors: tuple[GraphTensor, ...]
    live_out: frozenset[int]
    """Storages that are still alive at the end of the step (parameters, optimizer state, outputs)."""
    parameters: frozenset[int]
    """Storages of parameters and buffers, where known."""
    storages: tuple[GraphStorage, ...] | None = None
    """By id. None: the recording is older and has none."""
    truncated: bool = False
    """True if the op limit was reached and the step's tail is missing."""
    libraries: frozenset[str] = frozenset()
    """Files of installed packages among those of the ops; empty in older recordings."""
    batches: tuple[TokenBatch, ...] = ()
    """Token ids of embeddings, in order; empty in older recordings."""


OP_COLUMNS = tuple(field.name for field in fields(GraphOp) if field.name != "index")
BATCH_COLUMNS = tuple(field.name for field in fields(TokenBatch))
TENSOR_COLUMNS = tuple(field.name for field in fields(GraphTensor))
"""Columns of the file: the fields of the records, with texts as numbers of the document's ``strings``."""


def taken_over(graph: OpGraph, storages: tuple[GraphStorage, ...]) -> set[int]:
    """Storages that exist only because of the recording: the first input of the op would have been reused.

    The autograd engine adds up the gradients of a value that was used twice. It does so in place if it holds the only
    reference to the first one (``can_accumulate_inplace`` in torch/csrc/autograd/input_buffer.cpp), but never under a
    dispatch mode, which recorded the graph. Such an addition differs from those of a backward formula in its first
    input, which another node made earlier and which is freed by the addition.
    """
    found = set()
    for op in graph.ops:
        if op.name != "aten.add.Tensor" or op.phase != "backward" or op.recompute or not op.outputs:
            continue
        first, out = graph.tensors[op.inputs[0]].storage, graph.tensors[op.outputs[0]].storage
        held = storages[first]
        if held.born is None or held.died != op.index + 1 or held.bytes != storages[out].bytes or first == out:
            continue
        maker = graph.ops[held.born]
        if maker.phase == "backward" and not maker.recompute and maker.sequence != op.sequence:
            found.add(out)
    return found


def storage_devices(graph: OpGraph) -> dict[int, str]:
    """Type of the device of each storage that a tensor was seen of."""
    return {tensor.storage: tensor.device for tensor in graph.tensors}
