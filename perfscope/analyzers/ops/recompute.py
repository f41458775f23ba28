"""Forward work that runs again inside the backward pass (activation checkpointing).

An op is recomputed if its nearest enclosing autograd node exists and the op itself got an autograd
sequence number with forward thread 0: inside the backward only a re-run forward builds a new graph,
ordinary backward ops run without one. Its callees inherit that, up to the next autograd node. A
double backward (``create_graph=True``) builds a graph too, so where shapes were recorded most ops of
a node must also occur in the forward pass with the same shapes.

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

MOST_SEEN_BEFORE = 0.5
"""Share of a node's graph-building ops that the forward must have run. Checkpointing repeats everything except its
bookkeeping (copies of the random state); a double backward runs different ops with other shapes.
"""


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
    is_op = slices["kind"] == SliceKind.OP
    nodes = trace.fact(autograd_nodes)
    rows = np.arange(len(slices))
    in_backward = nearest_ancestor(trace, slices["parent"].astype(np.int64), nodes) != MISSING
    graphed = (slices["sequence"] != MISSING) & (slices["forward_thread"] == 0) & is_op & ~nodes
    seeds = graphed & in_backward
    around = nearest_ancestor(trace, slices["parent"].astype(np.int64), seeds | nodes)
    outermost = rows[seeds & ~np.where(around == MISSING, False, seeds[around])]
    outermost = _below_dispatched(trace, outermost, nodes)
    if "shapes" not in trace.recorded or not len(outermost):
        return outermost
    forward = is_op & ~in_backward & ~nodes
    known = set(zip(slices["name"][forward].tolist(), slices["shapes"][forward].tolist(), strict=True))
    again = np.array([(int(slices["name"][row]), int(slices["shapes"][row])) in known for row in outermost])
    _, owner = np.unique(nearest_ancestor(trace, outermost, nodes), return_inverse=True)
    share = np.bincount(owner, weights=again) / np.bincount(owner)
    return np.asarray(outermost[share[owner] >= MOST_SEEN_BEFORE], np.int64)


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
