"""How long each op of the op graph took in the timed steps of the same program.

The op graph carries no time and the timed trace no dataflow, but both saw the same ops in the same
order. Within each traced step the sequence of op names is laid beside the graph's; device time of
an op is that of the kernels launched in its host span, and on a program without an accelerator the
span itself stands for it.
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
    union_of,
    work_time,
)
from perfscope.model.finding import Removed
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

# Dataflow of an op graph over storages: who wrote what an op reads, who must stay in order.
#
# Views are transparent: they move nothing, so a value is a *version* of a storage, and a version is
# made by every op that writes the storage.


WRITE_ONLY = frozenset({"aten.copy_", "aten.fill_", "aten.zero_", "aten.uniform_", "aten.normal_", "aten.bernoulli_"})
"""In-place ops that overwrite their first argument without reading it."""


def base_name(op: GraphOp) -> str:
    """``aten.add.Tensor`` -> ``aten.add``: the name without the overload."""
    head, _, _ = op.name.rpartition(".")
    return head if "." in head else op.name


def short_name(op: GraphOp) -> str:
    """``aten.add_.Tensor`` -> ``add_``."""
    return base_name(op).rpartition(".")[2]


class Flow(Struct, frozen=True, kw_only=True):
    """Who depends on whom, by op index. Views have no entries."""

    reads: tuple[tuple[int, ...], ...]
    """By op: tensors it reads (indices into ``OpGraph.tensors``), each once."""
    writes: tuple[tuple[int, ...], ...]
    """By op: tensors it writes, each once."""
    producers: tuple[tuple[tuple[int, int], ...], ...]
    """By op: ``(tensor read, op that wrote what it reads)``; values from before the step have none."""
    order: tuple[tuple[int, ...], ...]
    """By op: earlier ops that must stay before it because it overwrites what they read or wrote."""
    consumers: tuple[tuple[int, ...], ...]
    """By op: later ops that read what it wrote."""
    outlives: tuple[bool, ...]
    """By op: something it wrote last is still alive when the step ends."""
    storage_bytes: dict[int, int]
    """The most bytes any tensor of a storage shows."""

    def region(self, graph: OpGraph, tensor: int) -> tuple[int, int]:
        """What names the bytes behind a tensor: the whole storage, or this part of it.

        Tensors that show all of a storage name the same bytes whatever their shape; parts are told
        apart by tensor, as the graph holds no offsets.
        """
        seen = graph.tensors[tensor]
        whole = seen.bytes >= self.storage_bytes[seen.storage]
        return (seen.storage, -1 if whole else tensor)


def trace_flow(trace: Trace) -> Flow | None:
    """The dataflow of the trace's op graph; ``None`` if none was recorded."""
    return None if trace.op_graph is None else flow_of(trace.op_graph)


def flow_of(graph: OpGraph) -> Flow:
    """Dependencies of all ops, in one pass over the graph."""
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
    """Inputs whose bytes the op reads. An overwritten part leaves the rest of its storage in use: a read."""
    if base_name(op) not in WRITE_ONLY:
        return _once(op.inputs)
    overwritten = {
        tensor for tensor in op.mutated if graph.tensors[tensor].bytes >= sizes[graph.tensors[tensor].storage]
    }
    return _once(tensor for tensor in op.inputs if tensor not in overwritten)


def _once(items: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(items))


ENOUGH_MATCHED = 0.9
"""Share of the graph's ops that must be found in a step. Steps of one program differ by a skipped branch
or a print, not by a tenth of their ops; below it, the structure step ran something else."""

LOOKAHEAD = 64
"""Ops to skip on either side to find the sequences in agreement again: a branch, not a layer."""


SAME = {"aten::_index_put_impl": "aten::index_put", "aten::new_zeros": "aten::zeros"}
"""Under a dispatch mode, as the graph is recorded, autograd adds up gradients out of place (``add``, else
``add_``) and fills index gradients by ``new_zeros`` and ``index_put`` (else ``zeros``, ``_index_put_impl_``)."""


class GraphTime(Struct, frozen=True, kw_only=True):
    """Host spans of the graph's ops, by traced step."""

    spans: tuple[npt.NDArray[np.int64], ...]
    """By matched step: row of ``slices`` for each op of the graph, ``MISSING`` where none was found."""
    matched_share: float
    """Of the graph's ops (views aside), over the steps that agree best; 0 where no step was traced."""
    on_device: bool
    """True: time is that of kernels. False: of host spans, on a program without an accelerator."""

    @property
    def known(self) -> bool:
        """True if enough ops were found for times to be said."""
        return bool(self.spans)


def graph_time(trace: Trace) -> GraphTime:
    """Where the ops of the trace's op graph are in its traced steps."""
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
    """Time of a set of graph ops in one step, the mean over traced steps; None where it is not known."""
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
    """A set of graph ops with their device work, in all steps where they were found, as what a fix takes away."""
    chosen = np.fromiter(ops, np.int64)
    rows = np.concatenate([spans[chosen] for spans in trace.fact(graph_time).spans] or [chosen[:0]])
    return removed_inside(trace, rows[rows != MISSING]) if len(rows) else ()


def spans_time(trace: Trace, rows: npt.NDArray[np.int64]) -> WorkTime:
    """Device work launched inside host spans; on a program without an accelerator, the spans themselves."""
    if len(trace.rows["kernels"]):
        return work_time(trace, rows)
    slices = trace.rows["slices"]
    total = union_of(slices, rows).total()
    return WorkTime(sum_ns=total, exposed_ns=total, kernels=0)


def align(names: list[str], seen: list[str]) -> list[int]:
    """For each of ``names`` its position in ``seen``, in order; ``MISSING`` where it has none.

    The sequences are walked together. Where they part, the nearest place is taken at which the
    next two names agree (one, at the end), at most ``LOOKAHEAD`` names away on either side. Given
    up once too many are missing for the whole to count: what follows stays ``MISSING``.
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
    """How far to skip on either side so that the next two names agree; the shortest way in all."""
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
    """Rows of the ops named so that no other such op encloses, by start: what was dispatched, not what it calls."""
    slices = trace.rows["slices"]
    wanted = (slices["kind"] == SliceKind.OP) & named_slices(trace, lambda name: _plain(name) in names)
    rows = outermost(trace, wanted)
    return np.asarray(rows[np.argsort(slices["start_ns"][rows], kind="stable")], np.int64)


def _steps(trace: Trace, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """The rows by step window; all in one where the trace shows no steps."""
    windows = trace.fact(step_windows)
    starts = trace.rows["slices"]["start_ns"][rows]
    if not windows.count:
        return [rows]
    bounds = zip(np.searchsorted(starts, windows.starts), np.searchsorted(starts, windows.ends), strict=True)
    return [rows[first:last] for first, last in bounds]


def _trace_name(name: str) -> str:
    """``aten.add_`` -> ``aten::add``, as a profiler names it, in place or not."""
    namespace, _, rest = name.partition(".")
    return _plain(f"{namespace}::{rest}")


def _plain(name: str) -> str:
    """Without the mark of an in-place op, and by one name where recording the graph makes autograd take another."""
    plain = name.rstrip("_")
    return SAME.get(plain, plain)
