"""Time of each op of the op graph in the timed steps of the same program.

The op graph has no times and the timed trace no dataflow, but both contain the same ops in the same order. Within each
traced step the sequence of op names is aligned with the graph's; the device time of an op is that of the kernels
launched in its host span, and without an accelerator that of the span itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time import (
    NO_WORK,
    WorkTime,
    named_slices,
    outermost,
    removed_inside,
    step_windows,
    time_with_core,
    union_of,
    work_time,
)
from perfscope.model.finding import Removed
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph


WRITE_ONLY = frozenset({"aten.copy_", "aten.fill_", "aten.zero_", "aten.uniform_", "aten.normal_", "aten.bernoulli_"})
"""In-place ops that overwrite their first argument without reading it."""

ENOUGH_MATCHED = 0.9
"""Share of the graph's ops that must be found in a step. Steps of one program differ by a skipped branch or a print,
not by a tenth of their ops; with fewer, the structure step ran something else.
"""

LOOKAHEAD = 64
"""Maximum number of ops to skip on either side until the sequences agree again: a branch, not a layer."""

SAME = {"aten::_index_put_impl": "aten::index_put", "aten::new_zeros": "aten::zeros"}
"""Under a dispatch mode, in which the graph is recorded, autograd adds gradients out of place (``add``, else ``add_``)
and fills index gradients with ``new_zeros`` and ``index_put`` (else ``zeros``, ``_index_put_impl_``).
"""


# Dataflow of an op graph over storages: the writers of an op's inputs, and ops whose order must be kept.
#
# Views are transparent: they move nothing, so a value is a *version* of a storage, and every op that writes the storage
# makes a version.


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


class GraphTime(Struct, frozen=True, kw_only=True):
    """Host spans of the graph's ops, by traced step."""

    spans: tuple[npt.NDArray[np.int64], ...]
    """By matched step: row of ``slices`` for each op of the graph, ``MISSING`` if none was found."""
    matched_share: float
    """Share of the graph's ops (without views) found in the steps that agree best; 0 without a traced step."""
    on_device: bool
    """Whether time is that of kernels; False: of host spans, without an accelerator."""

    @property
    def known(self) -> bool:
        """Whether enough ops were found for times to be known."""
        return bool(self.spans)


def graph_time(trace: Trace) -> GraphTime:
    """Find the ops of the trace's op graph in its traced steps."""
    graph, slices = trace.op_graph, trace.rows["slices"]
    on_device = bool(len(trace.rows["kernels"]))
    if graph is None or not len(slices):
        return GraphTime(spans=(), matched_share=0.0, on_device=on_device)
    wanted = [index for index, op in enumerate(graph.ops) if not op.view]
    names = [_trace_name(base_name(graph.ops[index])) for index in wanted]
    spans, best = [], 0.0
    for rows in _steps(trace, _outermost(trace, set(names))):
        found = align(names, [_plain(trace.strings[code]) for code in slices["name"][rows]])
        share = sum(position != MISSING for position in found) / len(names) if names else 0.0
        best = max(best, share)
        if share >= ENOUGH_MATCHED:
            placed = np.full(len(graph.ops), MISSING, np.int64)
            for index, position in zip(wanted, found, strict=True):
                if position != MISSING:
                    placed[index] = rows[position]
            spans.append(placed)
    return GraphTime(spans=tuple(spans), matched_share=best, on_device=on_device)


def ops_time(trace: Trace, ops: Iterable[int]) -> WorkTime | None:
    """Return the time of a set of graph ops per step, the mean over traced steps; None if unknown."""
    place = trace.fact(graph_time)
    if not place.known:
        return None
    chosen = np.fromiter(ops, np.int64)
    total = NO_WORK
    for spans in place.spans:
        rows = spans[chosen]
        total += spans_time(trace, rows[rows != MISSING])
    steps = len(place.spans)
    return WorkTime(
        sum_ns=round(total.sum_ns / steps),
        exposed_ns=round(total.exposed_ns / steps),
        kernels=round(total.kernels / steps),
    )


def removed_ops(trace: Trace, ops: Iterable[int]) -> tuple[Removed, ...]:
    """Return a set of graph ops with their device work in all matched steps, for a fix that removes them."""
    chosen = np.fromiter(ops, np.int64)
    rows = np.concatenate([spans[chosen] for spans in trace.fact(graph_time).spans] or [chosen[:0]])
    return removed_inside(trace, rows[rows != MISSING]) if len(rows) else ()


def spans_time(trace: Trace, rows: npt.NDArray[np.int64]) -> WorkTime:
    """Return the device work launched inside host spans; without an accelerator, their time with a core."""
    if len(trace.rows["kernels"]):
        return work_time(trace, rows)
    total = time_with_core(trace, union_of(trace.rows["slices"], rows))
    return WorkTime(sum_ns=total, exposed_ns=total, kernels=0)


def align(names: list[str], seen: list[str]) -> list[int]:
    """Return, for each of ``names``, its position in ``seen``, in order; ``MISSING`` without one.

    The sequences are walked together. If they differ, the nearest position is taken at which the next two names agree
    (one, at the end), at most ``LOOKAHEAD`` names away on either side. The walk stops if too many are missing for the
    result to count; the rest stays ``MISSING``.
    """
    found = [MISSING] * len(names)
    spare = max(LOOKAHEAD, len(names) - ENOUGH_MATCHED * len(names))
    i = j = 0
    while i < len(names) and j < len(seen) and spare >= 0:
        if names[i] == seen[j]:
            found[i] = j
            i, j = i + 1, j + 1
            continue
        skip, jump = _resume(names, seen, i, j) or (1, 1)
        spare -= skip
        i, j = i + skip, j + jump
    return found


def _resume(names: list[str], seen: list[str], i: int, j: int) -> tuple[int, int] | None:
    """Return how far to skip on either side so that the next two names agree; the smallest sum."""
    ahead: dict[tuple[str, ...], int] = {}
    for jump in range(min(LOOKAHEAD, len(seen) - j)):
        ahead.setdefault(tuple(seen[j + jump : j + jump + 2]), jump)
    ways = [
        (skip, ahead[pair])
        for skip in range(min(LOOKAHEAD, len(names) - i))
        if (pair := tuple(names[i + skip : i + skip + 2])) in ahead
    ]
    return min(ways, key=sum, default=None)


def _outermost(trace: Trace, names: set[str]) -> npt.NDArray[np.int64]:
    """Return the rows of the ops with these names outside of other such ops, by start: the dispatched ops."""
    slices = trace.rows["slices"]
    wanted = (slices["kind"] == SliceKind.OP) & named_slices(trace, lambda name: _plain(name) in names)
    rows = outermost(trace, wanted)
    return np.asarray(rows[np.argsort(slices["start_ns"][rows], kind="stable")], np.int64)


def _steps(trace: Trace, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the rows by step window; all in one window without steps."""
    windows = trace.fact(step_windows)
    starts = trace.rows["slices"]["start_ns"][rows]
    if not windows.count:
        return [rows]
    bounds = zip(np.searchsorted(starts, windows.starts), np.searchsorted(starts, windows.ends), strict=True)
    return [rows[first:last] for first, last in bounds]


def _trace_name(name: str) -> str:
    """Return the profiler's name, in place or not: ``aten::add`` for ``aten.add_``."""
    namespace, _, rest = name.partition(".")
    return _plain(f"{namespace}::{rest}")


def _plain(name: str) -> str:
    """Return the name without the mark of an in-place op, unified for ops that differ when the graph is recorded."""
    plain = name.rstrip("_")
    return SAME.get(plain, plain)
