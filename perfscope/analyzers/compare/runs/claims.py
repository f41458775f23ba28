"""Who a moment belongs to where several things happen at once: each moment goes to exactly one row, in integer ns.

Layers claim time one after another: what a layer does not take is left for the next. So the rows of all layers and what
is left at the end sum to the whole, exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.compare.statistics.window import without
from perfscope.analyzers.time import covering_slices, nearest_ancestor
from perfscope.model.intervals import Int64, Intervals, covered, union
from perfscope.model.trace import MISSING, Trace


def claim_first(free: Intervals, starts: Int64, ends: Int64) -> tuple[Int64, Intervals]:
    """ns of ``free`` that each row gets, and what is left; where rows overlap, the one that began first has it.

    ``starts`` and ``ends``: shape (n,), half open, in any order; of two that begin together the earlier row has it.
    """
    own = np.zeros(len(starts), np.int64)
    if not len(starts) or not len(free.starts):
        return own, free
    order = np.argsort(starts, kind="stable")
    begin, finish = starts[order], ends[order]
    reach = np.maximum.accumulate(finish)
    begin = np.maximum(begin, np.concatenate(([begin[0]], reach[:-1])))
    own[order] = covered(free, begin, np.maximum(begin, finish))
    return own, without(free, union(starts, ends))


def claim_innermost(
    trace: Trace, free: Intervals, thread: int, wanted: npt.NDArray[np.bool_]
) -> tuple[Int64, Int64, Intervals]:
    """(rows of ``slices``, ns each gets, what is left): a moment goes to the innermost wanted span of a thread.

    ``wanted``: mask over ``slices``. Spans that are not wanted are looked through.
    """
    slices = trace.rows["slices"]
    mine = np.flatnonzero((slices["thread"] == thread) & wanted)
    nothing = np.empty(0, np.int64)
    if not len(mine) or not len(free.starts):
        return nothing, nothing, free
    edges = np.unique(np.concatenate((slices["start_ns"][mine], slices["end_ns"][mine])))
    begin, finish = edges[:-1], edges[1:]
    inner = nearest_ancestor(trace, covering_slices(trace, np.full(len(begin), thread), begin), wanted)
    found = inner != MISSING
    rows, index = np.unique(inner[found], return_inverse=True)
    own = np.zeros(len(rows), np.int64)
    np.add.at(own, index, covered(free, begin[found], finish[found]))
    return rows, own, without(free, union(begin[found], finish[found]))


def by_largest_remainder(amounts: Int64, divisor: int) -> Int64:
    """Each amount divided by ``divisor`` in integers so that the sum is that of all, divided and rounded.

    The ns that rounding down leaves over go to the largest remainders, of equal ones to the first.
    """
    share, rest = amounts // divisor, amounts % divisor
    whole = int(amounts.sum())
    missing = (2 * whole + divisor) // (2 * divisor) - int(share.sum())
    order = np.argsort(-rest, kind="stable")[: max(missing, 0)]
    share[order] += 1
    return np.asarray(share, np.int64)
