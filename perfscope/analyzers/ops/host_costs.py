"""Costs of ops that ran on the host, assigned to the ops that did the work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.ops.achieved import costs_in, slice_costs
from perfscope.analyzers.ops.op_call import OpCost
from perfscope.analyzers.spans import op_times, subtree_ends
from perfscope.model.trace import MISSING, SliceKind, Trace


def host_costs(trace: Trace, rows: Iterable[int]) -> dict[int, OpCost]:
    """Return the costs of ops on the host, by row of ``slices`` of the op that did the work (as for self times)."""
    return costs_in(trace, rows, _at_work(trace, slice_costs(trace)))


def _at_work(trace: Trace, known: dict[int, OpCost]) -> dict[int, OpCost]:
    """Assign costs to the inner op with most of the time: ``copy_`` for ``clone``, a convolution's library call.

    An op that consists of several others (a custom op in Python) divides its cost among them by their self times.
    """
    slices = trace.rows["slices"]
    length, longest = slices["end_ns"] - slices["start_ns"], np.full(len(slices), MISSING, np.int64)
    inner = np.flatnonzero((slices["kind"] == SliceKind.OP) & (slices["parent"] != MISSING))
    inner = inner[np.argsort(length[inner], kind="stable")]
    longest[slices["parent"][inner]] = inner
    copies = [code for code, text in enumerate(trace.strings) if text == "aten::copy_"]
    is_copy = np.isin(slices["name"], copies)
    times = trace.fact(op_times)
    own = np.zeros(len(slices), np.int64)
    own[times.row] = times.self_ns
    result = {}
    for row, cost in known.items():
        at = row
        while (child := int(longest[at])) != MISSING and child not in known and 2 * length[child] > length[at]:
            if cost.flops and is_copy[child]:
                break
            at = child
        if child == MISSING or is_copy[child] or 2 * own[at] >= length[at]:
            result[at] = cost
        else:
            inside = [part for part in range(at, int(trace.fact(subtree_ends)[at])) if part == at or part not in known]
            result |= dict(_divided(cost, inside, own[inside].tolist()))
    return result


def _divided(cost: OpCost, rows: list[int], times: list[int]) -> Iterator[tuple[int, OpCost]]:
    """Yield each row with a part of the cost in proportion to its time."""
    whole = sum(times)
    for row, time in zip(rows, times, strict=True):
        if time:
            yield row, replace(cost, flops=cost.flops * time // whole, bytes=cost.bytes * time // whole)
