"""Updates of embedding tables of which a step reads few rows, by the op graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from perfscope.analyzers.graph import short_name
from perfscope.analyzers.ops.graph_time import graph_time
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import OpGraph

FEW_ROWS = 10
"""Rows of a table for each index of the batch from which most of its update is of rows without a gradient."""

MOSTLY = 0.5
"""Share of the bytes of an update of several tensors that such tables must have."""


def table_updates(trace: Trace) -> Int64:
    """Return the rows of ``slices`` of the optimizer's ops on such tables, in all matched steps."""
    graph = trace.op_graph
    tables = set() if graph is None else _tables(graph)
    if graph is None or not tables:
        return np.empty(0, np.int64)
    updates = [
        op.index
        for op in graph.ops
        if op.phase == "optimizer" and not op.view and _share(graph, op.inputs or op.outputs, tables) > MOSTLY
    ]
    rows = [spans[np.array(updates, np.int64)] for spans in trace.fact(graph_time).spans]
    found = np.concatenate(rows) if rows else np.empty(0, np.int64)
    return np.asarray(found[found != MISSING], np.int64)


def _tables(graph: OpGraph) -> set[tuple[int, ...]]:
    """Return the shapes of tables whose gradient has ``FEW_ROWS`` times as many rows as the batch has indices."""
    found = set[tuple[int, ...]]()
    for op in graph.ops:
        if short_name(op) == "embedding_dense_backward" and op.outputs and len(op.inputs) > 1:
            shape = graph.tensors[op.outputs[0]].shape
            indices = math.prod(graph.tensors[op.inputs[1]].shape)
            if len(shape) == 2 and shape[0] >= FEW_ROWS * indices:
                found.add(shape)
    return found


def _share(graph: OpGraph, tensors: tuple[int, ...], tables: set[tuple[int, ...]]) -> float:
    """Return the share of the bytes of some tensors that belongs to tensors with such a shape."""
    sizes = [(graph.tensors[index].shape in tables, graph.tensors[index].bytes) for index in tensors]
    total = sum(size for _, size in sizes)
    return sum(size for of_table, size in sizes if of_table) / total if total else 0.0
