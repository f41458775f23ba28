"""Which span encloses which: parents of host slices, and the slice around a moment of a thread."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from perfscope.model.trace.columns import MISSING, Array


def nesting_order(thread: Array, start: Array, end: Array) -> Array:
    """Row order by thread, then start, then longest first. Shapes (n,); times in ns."""
    if not len(start):
        return np.empty(0, np.int64)
    span = int(start.max()) - int(start.min()) + 1
    if int(thread.max()) < (2**63 - 1) // span:
        key = thread.astype(np.int64) * span + (start - start.min())
        order = np.argsort(key, kind="stable")  # a profiler writes almost in order: near-linear
        ties = np.flatnonzero(np.diff(key[order]) == 0)
        if not len(ties):
            return order
        tied = np.union1d(ties, ties + 1)
        rows = order[tied]
        order[tied] = rows[np.lexsort((rows, -end[rows], key[rows]))]
        return order
    return np.lexsort((-end, start, thread))


def parents(thread: Array, start: Array, end: Array) -> Array:
    """Row of the innermost enclosing span of the same thread, ``MISSING`` for none. Rows in nesting order.

    Level by level: the depth of a span is the number of spans of its thread that are still open
    when it starts, its parent the last span one level up. Threads whose spans overlap without
    nesting are walked with a stack instead.
    """
    found = np.full(len(start), MISSING, np.int32)
    edges = np.flatnonzero(np.diff(thread)) + 1
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(thread)], strict=True):
        part = slice(low, high)
        local = _parents_of_thread(start[part], end[part])
        found[part] = np.where(local == MISSING, MISSING, local + low)
    return found


def _parents_of_thread(start: Array, end: Array) -> Array:
    # twice the time, so that an empty span at t is open between t and t + 1/2
    begin, finish = start * 2, np.maximum(end * 2, start * 2 + 1)
    closed = np.searchsorted(np.sort(finish), begin, side="right")
    depth = np.arange(len(start)) - closed
    parent = np.full(len(start), MISSING, np.int64)
    if not len(start):
        return parent
    by_depth = np.argsort(depth, kind="stable")
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    for upper, lower in pairwise(levels):
        place = np.searchsorted(upper, lower) - 1
        parent[lower] = np.where(place >= 0, upper[np.maximum(place, 0)], MISSING)
    has = parent != MISSING
    nested = (finish[parent[has]] >= finish[has]).all() and (has | (depth == 0)).all() and (depth >= 0).all()
    return parent if nested else _parents_by_stack(begin, finish)


def _parents_by_stack(begin: Array, finish: Array) -> Array:
    """The last row before each that ends no sooner, and after its start: who is passed over never encloses again."""
    parent = np.full(len(begin), MISSING, np.int64)
    stack: list[tuple[int, int]] = []
    for row, (opens, closes) in enumerate(zip(begin.tolist(), finish.tolist(), strict=True)):
        while stack and (stack[-1][1] < closes or stack[-1][1] <= opens):
            stack.pop()
        if stack:
            parent[row] = stack[-1][0]
        stack.append((row, closes))
    return parent


def innermost(
    threads: Array, starts: Array, ends: Array, parent: Array, thread: Array, start: Array, end: Array
) -> Array:
    """Row of the innermost span that encloses each ``[start, end)`` of ``thread``; ``MISSING`` for none.

    ``threads``, ``starts``, ``ends``, ``parent`` describe the spans, in nesting order, shapes (n,);
    the asked intervals have shape (m,) and so has the result (int32).
    """
    found = np.full(len(start), MISSING, np.int64)
    if not len(starts):
        return found.astype(np.int32)
    edges = np.concatenate(([0], np.flatnonzero(np.diff(threads)) + 1, [len(threads)])).astype(np.int64)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if high == low:
            continue
        asked = np.flatnonzero(thread == threads[low])
        place = np.searchsorted(starts[low:high], start[asked], side="right") - 1
        found[asked] = np.where(place >= 0, place + low, MISSING)
    left = np.flatnonzero(found != MISSING)
    while len(left := left[ends[found[left]] < end[left]]):
        found[left] = parent[found[left]]
        left = left[found[left] != MISSING]
    return found.astype(np.int32)
