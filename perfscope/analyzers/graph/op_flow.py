"""Dataflow of an op graph over storages: the writers of an op's inputs, and ops whose order must be kept.

Views are transparent: they move nothing, so a value is a *version* of a storage, and every op that writes the storage
makes a version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph
    from perfscope.model.trace import Trace

WRITE_ONLY = frozenset({"aten.copy_", "aten.fill_", "aten.zero_", "aten.uniform_", "aten.normal_", "aten.bernoulli_"})
"""In-place ops that overwrite their first argument without reading it."""


def base_name(op: GraphOp) -> str:
    """Return the name without the overload: ``aten.add`` for ``aten.add.Tensor``."""
    head, _, _ = op.name.rpartition(".")
    return head if "." in head else op.name


def short_name(op: GraphOp) -> str:
    """Return ``add_`` for ``aten.add_.Tensor``."""
    return base_name(op).rpartition(".")[2]


class Flow(Struct, frozen=True, kw_only=True):
    """Dependencies by op index. Views have no entries."""

    reads: tuple[tuple[int, ...], ...]
    """By op: tensors it reads (indices into ``OpGraph.tensors``), each once."""
    writes: tuple[tuple[int, ...], ...]
    """By op: tensors it writes, each once."""
    producers: tuple[tuple[tuple[int, int], ...], ...]
    """By op: ``(tensor read, op that wrote it)``; values from before the step have no entry."""
    order: tuple[tuple[int, ...], ...]
    """By op: earlier ops that must stay before it because it overwrites their inputs or results."""
    consumers: tuple[tuple[int, ...], ...]
    """By op: later ops that read its results."""
    outlives: tuple[bool, ...]
    """By op: whether a result that it wrote last is still live when the step ends."""
    storage_bytes: dict[int, int]
    """Largest number of bytes of any tensor of a storage."""

    def region(self, graph: OpGraph, tensor: int) -> tuple[int, int]:
        """Return a key for the bytes of a tensor: the whole storage, or this part of it.

        Tensors that cover a whole storage share a key whatever their shape; parts are distinguished by tensor, because
        the graph has no offsets.
        """
        seen = graph.tensors[tensor]
        whole = seen.bytes >= self.storage_bytes[seen.storage]
        return (seen.storage, -1 if whole else tensor)


def trace_flow(trace: Trace) -> Flow | None:
    """Return the dataflow of the trace's op graph; ``None`` without a graph."""
    return None if trace.op_graph is None else flow_of(trace.op_graph)


def flow_of(graph: OpGraph) -> Flow:
    """Return the dependencies of all ops, in one pass over the graph."""
    sizes: dict[int, int] = {}
    for seen in graph.tensors:
        sizes[seen.storage] = max(sizes.get(seen.storage, 0), seen.bytes)
    count = len(graph.ops)
    reads: list[tuple[int, ...]] = [()] * count
    writes: list[tuple[int, ...]] = [()] * count
    producers: list[tuple[tuple[int, int], ...]] = [()] * count
    order: list[tuple[int, ...]] = [()] * count
    consumers: list[list[int]] = [[] for _ in range(count)]
    last_writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(graph.ops):
        if op.view:
            continue
        reads[index] = _reads(graph, op, sizes)
        writes[index] = _once((*op.outputs, *op.mutated))
        made_by = []
        for tensor in reads[index]:
            storage = graph.tensors[tensor].storage
            writer = last_writer.get(storage)
            if writer is not None:
                made_by.append((tensor, writer))
                consumers[writer].append(index)
        producers[index] = tuple(made_by)
        before: list[int] = []
        written = {graph.tensors[tensor].storage for tensor in writes[index]}
        for storage in written:
            before.extend(readers.get(storage, ()))
            if storage in last_writer:
                before.append(last_writer[storage])
        order[index] = tuple(sorted(set(before)))
        for tensor in reads[index]:
            readers.setdefault(graph.tensors[tensor].storage, []).append(index)
        for storage in written:
            last_writer[storage] = index
            readers[storage] = []
    outlives = [False] * count
    for storage, writer in last_writer.items():
        if storage in graph.live_out:
            outlives[writer] = True
    return Flow(
        reads=tuple(reads),
        writes=tuple(writes),
        producers=tuple(producers),
        order=tuple(order),
        consumers=tuple(_once(consumer) for consumer in consumers),
        outlives=tuple(outlives),
        storage_bytes=sizes,
    )


def _reads(graph: OpGraph, op: GraphOp, sizes: dict[int, int]) -> tuple[int, ...]:
    """Return the inputs whose bytes the op reads. A partly overwritten storage counts as read."""
    if base_name(op) not in WRITE_ONLY:
        return _once(op.inputs)
    overwritten = {
        tensor for tensor in op.mutated if graph.tensors[tensor].bytes >= sizes[graph.tensors[tensor].storage]
    }
    return _once(tensor for tensor in op.inputs if tensor not in overwritten)


def _once(items: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(items))
