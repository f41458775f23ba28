"""Forward work that runs again inside the backward pass (activation checkpointing).

An op is recomputed if its nearest enclosing autograd node exists and the op itself got an autograd
sequence number with forward thread 0: inside the backward only a re-run forward builds a new graph,
ordinary backward ops run without one. Its callees inherit that, up to the next autograd node. In a
double backward (``create_graph=True``) the ordinary ops build a graph too: a node in which every op does is one.

On the MI300X ResNet trace of TraceLens this gives the same time, to the nanosecond, as summing below
the Python frames of ``torch/utils/checkpoint.py: recompute_fn``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.ops.graph_time import spans_time
from perfscope.analyzers.spans import WorkTime, named_slices, nearest_ancestor
from perfscope.model.trace import MISSING, SliceKind, Trace

EVALUATE = "autograd::engine::evaluate_function"
"""Prefix of the names of autograd nodes."""

OPTIMIZER_STEP = "Optimizer.step#"
"""Prefix of the spans of torch.optim's steps: ``Optimizer.step#AdamW.step``."""


class RecomputeRegion(Struct, frozen=True, kw_only=True):
    """The recomputed ops below one autograd node."""

    node: int
    """Row of ``slices`` of the autograd node that caused the recomputation."""
    ops: tuple[int, ...]
    """Rows of ``slices``: the outermost recomputed ops, in order."""
    time: WorkTime


def recomputed_ops(trace: Trace) -> npt.NDArray[np.int64]:
    """Rows of ``slices``: outermost recomputed ops, in order of the table."""
    slices = trace.rows["slices"]
    is_op, nodes = slices["kind"] == SliceKind.OP, trace.fact(autograd_nodes)
    rows, parents = np.arange(len(slices)), slices["parent"].astype(np.int64)
    owner = nearest_ancestor(trace, parents, nodes)
    inner = is_op & ~nodes & (owner != MISSING)
    graphed = inner & (slices["sequence"] != MISSING)
    seeds = graphed & (slices["forward_thread"] == 0)
    around = nearest_ancestor(trace, parents, seeds | nodes)
    outermost = rows[seeds & ~np.where(around == MISSING, False, seeds[around])]
    around = nearest_ancestor(trace, parents, is_op)
    called = nodes[around] | (slices["forward_thread"][around] > 0)  # the engine's span, and the node's own inside it
    ordinary = np.unique(owner[inner & called & ~graphed])
    return _below_dispatched(trace, outermost[np.isin(owner[outermost], ordinary)], nodes)


def _below_dispatched(trace: Trace, rows: npt.NDArray[np.int64], nodes: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the autograd nodes that re-run at least one op of a library (``aten::``).

    A backward that only calls ``Function.apply`` (all-to-all, whose gradient is an all-to-all) gets a sequence number
    too, but repeats nothing.
    """
    if not len(rows):
        return rows
    dispatched = named_slices(trace, lambda name: "::" in name)
    owner = nearest_ancestor(trace, rows, nodes)
    real = np.unique(owner[dispatched[rows]])
    return np.asarray(rows[np.isin(owner, real)], np.int64)


def recompute_regions(trace: Trace) -> tuple[RecomputeRegion, ...]:
    """Return the recomputation by the autograd node that caused it, in order of the table."""
    rows = trace.fact(recomputed_ops)
    owners = nearest_ancestor(trace, rows, trace.fact(autograd_nodes))
    rows = rows[np.argsort(owners, kind="stable")]
    nodes, firsts = np.unique(np.sort(owners), return_index=True)
    return tuple(
        RecomputeRegion(node=node, ops=tuple(ops.tolist()), time=spans_time(trace, ops))
        for node, ops in zip(nodes.tolist(), np.split(rows, firsts[1:]), strict=False)
    )


def autograd_nodes(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``slices`` in which the engine evaluates one autograd node."""
    return named_slices(trace, lambda name: name.startswith(EVALUATE))
