"""Ops of PyTorch that write a whole cache again for each new part, in place of the part alone.

A cache of keys and values exists before the step, attention reads it or its copy, and the copy of the same size is kept
for the next step: by a mask (``torch.where``), by an op out of place (``index_copy``, ``scatter``), by ``clone`` before
a write, or by an index of its rows (beam search). A paged cache is copied if its pages are joined before attention
reads them. Known from the op graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from perfscope.analyzers.graph import short_name
from perfscope.analyzers.spans import named_slices
from perfscope.analyzers.time import call_site
from perfscope.model.op_flops import BATCHED_PRODUCTS
from perfscope.model.trace import SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

ATTENTION = re.compile(r"attention|flash_attn|sdpa|fmha", re.IGNORECASE)
"""Names of ops and modules that compute attention."""

MOST_CALLS = 1_000
"""Maximum number of calls of attention whose line is looked up: each takes about 0.1 ms."""

ROW_PICKS = frozenset({"index_select", "index", "gather", "take_along_dim"})
"""Ops that write chosen rows of a cache: those of the beams that go on."""

_COPIES = ROW_PICKS | {
    "where", "masked_fill", "masked_scatter", "index_copy", "index_put", "index_add", "index_fill", "scatter",
    "scatter_add", "slice_scatter", "select_scatter", "clone", "_to_copy", "roll", "copy", "contiguous",
}  # fmt: skip
_MASKED = frozenset({"mul", "add", "sub", "rsub", "lerp"})
"""Arithmetic that writes through a mask of ones and zeros: ``cache * (1 - here) + new * here``."""


class CacheCopies(Struct, frozen=True, kw_only=True):
    """Ops that copy a cache; by index in the op graph."""

    copies: frozenset[int]
    picks: frozenset[int]
    """The ops among them that pick rows."""
    gathers: frozenset[int] = frozenset()
    """Ops that join pages of a cache for attention, which drops the result."""


def attention_functions(trace: Trace) -> frozenset[tuple[str | None, str | None]]:
    """Return (file, function) of the program that call attention, or compute it from products."""
    names = named_slices(trace, lambda name: ATTENTION.search(name) and not name.startswith("nn.Module"))
    rows = np.flatnonzero(names & (trace.rows["slices"]["kind"] == SliceKind.OP))
    sites = {(site.file, site.function) for site in (call_site(trace, row) for row in rows[:MOST_CALLS].tolist())}
    graph = trace.op_graph
    by_hand = set() if graph is None else _products_after_softmax(graph.ops)
    return frozenset(sites - {(None, None)} | by_hand)


def _products_after_softmax(ops: tuple[GraphOp, ...]) -> set[tuple[str | None, str | None]]:
    """(file, function) with a softmax and a batched product."""
    batched = {(op.file, op.function) for op in ops if short_name(op).rstrip("_") in BATCHED_PRODUCTS}
    return {(op.file, op.function) for op in ops if short_name(op) == "_softmax"} & batched


def is_attention(trace: Trace, op: GraphOp) -> bool:
    """Whether an op of the graph computes attention, or is a product in a function that writes it out."""
    if ATTENTION.search(op.name):
        return True
    return short_name(op) in BATCHED_PRODUCTS and (op.file, op.function) in trace.fact(attention_functions)


def cache_copies(trace: Trace) -> CacheCopies:
    """Return the ops that copy a cache which exists before the step and keep the copy for the next step."""
    graph = trace.op_graph
    paths: dict[int, tuple[int, ...]] = {}
    if graph is None or graph.storages is None or any(op.phase == "backward" for op in graph.ops):
        return CacheCopies(copies=frozenset(), picks=frozenset())
    attended = _read_by_attention(trace, graph)
    last = _last_readers(graph)
    members: dict[int, set[int]] = {}
    found = set[int]()
    for op in graph.ops:
        copied = None if op.view or short_name(op) not in _COPIES | _MASKED else _copied(graph, op, paths)
        if copied is None or last[copied] != op.index:
            continue
        out = graph.tensors[op.outputs[0]].storage
        paths[out] = (*paths.get(copied, ()), op.index)
        members[out] = {out, copied} | members.get(copied, set())
        arithmetic = all(short_name(graph.ops[index]) in _MASKED for index in paths[out])
        if out in graph.live_out and members[out] & attended and (not arithmetic or len(paths[out]) > 1):
            found.update(paths[out])
    picks = frozenset(index for index in found if short_name(graph.ops[index]) in ROW_PICKS)
    return CacheCopies(copies=frozenset(found), picks=picks, gathers=frozenset(_gathers(graph, attended)))


def _gathers(graph: OpGraph, attended: set[int]) -> Iterator[int]:
    """Yield the ops that pick parts of a tensor which is kept and which the step writes into, for attention alone."""
    written = {graph.tensors[index].storage for op in graph.ops for index in op.mutated}
    for op in graph.ops:
        if short_name(op) not in ROW_PICKS or not op.outputs:
            continue
        cache, out = (graph.tensors[index].storage for index in (op.inputs[0], op.outputs[0]))
        if cache in written & graph.live_out and out in attended - graph.live_out:
            yield op.index


def _copied(graph: OpGraph, op: GraphOp, paths: dict[int, tuple[int, ...]]) -> int | None:
    """Return the storage that an op writes again as a whole: older than the step, or such a copy."""
    if not op.outputs or graph.storages is None:
        return None
    out = graph.tensors[op.outputs[0]]
    for tensor in (graph.tensors[index] for index in op.inputs):
        old = graph.storages[tensor.storage]
        known = old.born is None or tensor.storage in paths
        if known and tensor.storage != out.storage and tensor.bytes == out.bytes and old.bytes == out.bytes:
            return tensor.storage
    return None


def _read_by_attention(trace: Trace, graph: OpGraph) -> set[int]:
    return {graph.tensors[index].storage for op in graph.ops if is_attention(trace, op) for index in op.inputs}


def _last_readers(graph: OpGraph) -> dict[int, int]:
    """Return the last op that reads each storage, views aside."""
    return {graph.tensors[index].storage: op.index for op in graph.ops if not op.view for index in op.inputs}
