"""Where runtime calls stand on the host: their innermost op, and values summed by it. Vectorised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.facts.nesting import nearest_ancestor
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, SliceKind, Trace

NO_OP = "(outside every op)"


def ops_of_calls(trace: Trace, calls: npt.ArrayLike) -> Int64:
    """Row of ``slices`` of the innermost op around each row of ``calls``; ``MISSING`` where there is none."""
    rows = np.asarray(calls, np.int64)
    parents = trace.rows["calls"]["parent"]
    inside = np.where(rows == MISSING, MISSING, parents[np.maximum(rows, 0)]) if len(parents) else rows
    return nearest_ancestor(trace, inside, trace.rows["slices"]["kind"] == SliceKind.OP)


def largest_by_op(
    trace: Trace, calls: npt.ArrayLike, values: npt.ArrayLike, limit: int
) -> list[tuple[str, int, int, int]]:
    """(op name, sum, count, largest) of ``values`` by the op around ``calls``, the largest sum first."""
    ops = ops_of_calls(trace, calls)
    amounts = np.asarray(values, np.int64)
    names = trace.rows["slices"]["name"]
    codes = np.where(ops == MISSING, MISSING, names[np.maximum(ops, 0)]) if len(names) else ops
    distinct, index = np.unique(codes, return_inverse=True)
    total, largest = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.add.at(total, index, amounts)
    np.maximum.at(largest, index, amounts)
    count = np.bincount(index, minlength=len(distinct))
    order = np.argsort(-total, kind="stable")[:limit]
    return [
        (trace.text(int(distinct[i])) or NO_OP, int(total[i]), int(count[i]), int(largest[i])) for i in order.tolist()
    ]
