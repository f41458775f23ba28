"""Tables under construction: growing columns, rows in order, links by id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from perfscope.model.trace import Rows, SliceKind
from perfscope.model.trace.columns import MISSING, Array
from perfscope.native import library as native_library

Columns = dict[str, Array]

_GROWTH = 1.25
"""Growth factor: a larger one wastes memory (new room is touched when it is zeroed), a smaller one moves data more
often.
"""
_FIRST = 4096
_SPARSE = 16
"""Maximum ids per entry for a dense table. It takes 4 bytes per id of the range; with up to 16 ids per entry it is
smaller than the events were.
"""

LARGEST = 2**62

_DIGITS = 25
"""Digits of a step's number that are read; a number with more than 18 is not from a profiler."""


class ColumnBuffer:
    """A table under construction: append column sets, then take the columns once."""

    def __init__(self) -> None:
        self._buffers: Columns = {}
        self._rows = 0
        self._room = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, part: Columns) -> None:
        """Append rows. A column that one part lacks is ``MISSING`` there (0 if unsigned)."""
        added = len(next(iter(part.values())))
        needed = self._rows + added
        if needed > self._room:
            self._room = max(int(self._room * _GROWTH), needed, _FIRST)
            for buffer in self._buffers.values():
                buffer.resize(self._room, refcheck=False)  # realloc: large blocks are remapped, not copied.
        for name, values in part.items():
            if name not in self._buffers:
                self._buffers[name] = np.zeros(self._room, values.dtype)
                self._buffers[name][: self._rows] = blank_value(values.dtype)
            self._buffers[name][self._rows : needed] = values
        for name, buffer in self._buffers.items():
            if name not in part:
                buffer[self._rows : needed] = blank_value(buffer.dtype)
        self._rows = needed

    def take(self) -> Columns:
        """Return the columns, cut to their length; the table is empty afterwards."""
        columns, self._buffers = self._buffers, {}
        for buffer in columns.values():
            buffer.resize(self._rows, refcheck=False)
        self._rows = self._room = 0
        return columns


def blank_value(dtype: np.dtype[np.generic]) -> int:
    """Return the value of an integer column for rows without a record."""
    return MISSING if dtype.kind == "i" else 0


def join_columns(parts: list[Columns]) -> Columns:
    """Concatenate column sets and empty ``parts``; blanks as in ``ColumnBuffer.append``."""
    if len(parts) == 1:
        return parts[0]
    names = list(dict.fromkeys(name for part in parts for name in part))
    sizes = [len(next(iter(part.values()), ())) for part in parts]
    joined: Columns = {}
    for name in names:
        dtype = next(part[name].dtype for part in parts if name in part)
        pieces = [
            part.pop(name) if name in part else np.full(size, blank_value(dtype), dtype)
            for part, size in zip(parts, sizes, strict=True)
        ]
        joined[name] = np.concatenate(pieces)
    return joined


def reorder(columns: Columns, order: Array) -> None:
    """Sort the rows of ``columns`` by ``order``, column by column; sorted rows do not move."""
    if (order == np.arange(len(order))).all():
        return
    for name in columns:
        columns[name] = columns[name][order]


class Lookup:
    """Row by id. Ids of a trace are mostly dense, so a table is faster than a search; sparse ids are searched."""

    def __init__(self, ids: Array, rows: Array) -> None:
        """``ids`` of a whole table; ``rows``: the rows to find. The last of equal ids wins."""
        rows = rows[ids[rows] >= 0]
        wanted = ids[rows]
        self._first = int(wanted.min()) if len(wanted) else 0
        extent = int(wanted.max()) - self._first + 1 if len(wanted) else 0
        self._dense = extent <= _SPARSE * len(wanted) + 1024
        if self._dense:
            self._table = np.full(extent, MISSING, np.int32)
            self._table[wanted - self._first] = rows
            return
        order = np.argsort(wanted, kind="stable")
        last = np.concatenate((np.diff(wanted[order]) != 0, [True]))
        self._ids, self._rows = wanted[order][last], rows[order][last].astype(np.int32)

    def __call__(self, ids: Array) -> Array:
        """Return the row of each id, ``MISSING`` without one; shape (n,), int32."""
        if self._dense:
            index = ids - self._first
            inside = (ids >= 0) & (index >= 0) & (index < len(self._table))
            rows = np.full(len(ids), MISSING, np.int32)
            rows[inside] = self._table[index[inside]]
            return rows
        index = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[index] == ids, self._rows[index], np.int32(MISSING))


# Nesting of spans: parents of host slices, and the slice around a moment of a thread.


def nesting_order(thread: Array, start: Array, end: Array) -> Array:
    """Return the row order by thread, then start, then longest first. Shapes (n,); times in ns."""
    if not len(start):
        return np.empty(0, np.int64)
    span = int(start.max()) - int(start.min()) + 1
    if int(thread.max()) < (2**63 - 1) // span:
        key = thread.astype(np.int64) * span + (start - start.min())
        order = np.argsort(key, kind="stable")  # Profilers write almost in order, so the sort is near-linear.
        ties = np.flatnonzero(np.diff(key[order]) == 0)
        if not len(ties):
            return order
        tied = np.union1d(ties, ties + 1)
        rows = order[tied]
        order[tied] = rows[np.lexsort((rows, -end[rows], key[rows]))]
        return order
    return np.lexsort((-end, start, thread))


def parents(thread: Array, start: Array, end: Array) -> Array:
    """Return the row of the innermost enclosing span of the same thread, or ``MISSING``. Rows in nesting order.

    It works level by level. The depth of a span is the number of open spans of its thread at its start; its parent is
    the last span one level up. Threads with spans that overlap without nesting are walked with a stack. The native
    library walks all with a stack.
    """
    if native_library() is not None:
        from perfscope.native.sweep import parents as native_parents

        return native_parents(thread, start, end)
    result = np.full(len(start), MISSING, np.int32)
    edges = np.flatnonzero(np.diff(thread)) + 1
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(thread)], strict=True):
        part = slice(low, high)
        local = _parents_of_thread(start[part], end[part])
        result[part] = np.where(local == MISSING, MISSING, local + low)
    return result


def _parents_of_thread(start: Array, end: Array) -> Array:
    # Doubled times, so that an empty span at t is open between t and t + 1/2.
    begin, finish = start * 2, np.maximum(end * 2, start * 2 + 1)
    closed = np.searchsorted(np.sort(finish), begin, side="right")
    depth = np.arange(len(start)) - closed
    parent = np.full(len(start), MISSING, np.int64)
    if not len(start):
        return parent
    by_depth = np.argsort(depth, kind="stable")
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    for upper, lower in pairwise(levels):
        positions = np.searchsorted(upper, lower) - 1
        parent[lower] = np.where(positions >= 0, upper[np.maximum(positions, 0)], MISSING)
    has = parent != MISSING
    nested = (finish[parent[has]] >= finish[has]).all() and (has | (depth == 0)).all() and (depth >= 0).all()
    return parent if nested else _parents_by_stack(begin, finish)


def _parents_by_stack(begin: Array, finish: Array) -> Array:
    """Return each row's last earlier row that encloses it; closed rows never enclose a later one."""
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
    """Return the row of the innermost span that encloses each ``[start, end)`` of ``thread``, or ``MISSING``.

    ``threads``, ``starts``, ``ends``, ``parent`` describe the spans, in nesting order, shapes (n,). The intervals to
    find have shape (m,), and so has the result (int32).
    """
    if native_library() is not None:
        from perfscope.native.sweep import innermost as native_innermost

        return native_innermost((threads, starts, ends, parent), thread, start, end)
    result = np.full(len(start), MISSING, np.int64)
    if not len(starts):
        return result.astype(np.int32)
    edges = np.concatenate(([0], np.flatnonzero(np.diff(threads)) + 1, [len(threads)])).astype(np.int64)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if high == low:
            continue
        on_thread = np.flatnonzero(thread == threads[low])
        positions = np.searchsorted(starts[low:high], start[on_thread], side="right") - 1
        result[on_thread] = np.where(positions >= 0, positions + low, MISSING)
    left = np.flatnonzero(result != MISSING)
    while len(left := left[ends[result[left]] < end[left]]):
        result[left] = parent[result[left]]
        left = left[result[left] != MISSING]
    return result.astype(np.int32)


# Derivations that readers of recordings share: from names, enclosing spans and annotations.


def of_names(names: Array, strings: Sequence[str], classify: Callable[[str], Any], dtype: Any) -> Array:
    """Return ``classify(text)`` of each row's name, computed once per distinct name; shape (n,)."""
    if not len(names):
        return np.empty(0, dtype)
    places = names + 1  # MISSING is -1; counting is faster than sorting millions of names.
    used = np.flatnonzero(np.bincount(places))
    answers = np.zeros(used[-1] + 1, dtype)
    for index in used.tolist():
        answers[index] = classify(strings[index - 1] if index else "")
    result: Array = answers[places]
    return result


def span_around(slices: Rows, thread: Array, start: Array, end: Array) -> Array:
    """Return the row of the thread's innermost slice around each interval, or ``MISSING``; shape (n,)."""
    return innermost(slices["thread"], slices["start_ns"], slices["end_ns"], slices["parent"], thread, start, end)


def parent_of_call(calls: Rows, call: Array) -> Array:
    """Return the row of the slice around each call row; ``MISSING`` stays."""
    return np.where(call == MISSING, MISSING, calls["parent"][call] if len(calls) else MISSING)


def op_above(slices: Rows, rows: Array) -> Array:
    """Return the innermost op or annotation at or above each slice row; shape (n,), int32."""
    found = rows.astype(np.int64)
    while len(slices):
        climbing = (found != MISSING) & (slices["kind"][np.maximum(found, 0)] > int(SliceKind.ANNOTATION))
        if not climbing.any():
            break
        found[climbing] = slices["parent"][found[climbing]]
    return found.astype(np.int32)


def named_steps(
    slices: Mapping[str, Array], candidates: Array, strings: Sequence[str], patterns: Iterable[re.Pattern[str]]
) -> Columns:
    """Return steps from slices whose names match the first pattern with a match, by start; group 1 is the number.

    ``candidates``: rows of slices that may be steps.
    """
    names = slices["name"][candidates]
    for pattern in patterns:
        numbers = of_names(names, strings, partial(_number, pattern), np.int64)
        rows = candidates[numbers != MISSING]
        if len(rows):
            order = np.argsort(slices["start_ns"][rows], kind="stable")
            columns = {name: slices[name][rows[order]] for name in ("start_ns", "end_ns", "name")}
            return {**columns, "number": numbers[numbers != MISSING][order]}
    return {}


def _number(pattern: re.Pattern[str], name: str) -> int:
    match = pattern.match(name)
    number = MISSING if match is None else int(match[1][:_DIGITS])
    return number if number < LARGEST else MISSING
