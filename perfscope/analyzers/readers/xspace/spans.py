"""Spans of the host's threads in nesting order, with their parents and kinds.

The native library makes the whole table in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from perfscope.analyzers.readers.columns import Columns, nesting_order, parents, reorder
from perfscope.model.trace import SliceKind
from perfscope.model.trace.columns import MISSING, Array
from perfscope.native import library as native_library
from perfscope.native.xspace import Spans

PERHAPS = 255
"""Kind of a span that is an annotation unless a span of the runtime encloses it."""

DROPPED = 254
"""Kind of an event that is not a row of the table."""


def nest(parts: Sequence[Spans]) -> tuple[Columns, Array, int]:
    """Return table ``slices`` of all parts, the row of each event, and the number of spans that were written twice.

    A call of a jitted function directly in one of the same name is left out: profilers write it twice. Rows are int32
    (``MISSING``: left out), in the order of ``parts`` and their events, and valid for parts that want them. The arrays
    of ``parts`` may be overwritten.
    """
    sizes = [len(part.kind) for part in parts]
    firsts = [0, *accumulate(sizes)]
    by_thread = sorted(range(len(parts)), key=lambda place: parts[place].thread)
    spans = sum(int(np.count_nonzero(part.kind != DROPPED)) for part in parts)
    if native_library() is not None and parts:
        from perfscope.native.xspace import nest as native_nest

        columns, rows = native_nest([parts[place] for place in by_thread], [firsts[place] for place in by_thread])
        return columns, rows, spans - len(columns["kind"])
    chosen = [np.flatnonzero(part.kind != DROPPED) for part in parts]
    both = list(zip(parts, chosen, strict=True))
    columns = {
        "start_ns": _joined([part.start_ns[rows] for part, rows in both], np.int64),
        "end_ns": _joined([part.end_ns[rows] for part, rows in both], np.int64),
        "name": _joined([part.names[part.place[rows]] for part, rows in both], np.int32),
        "thread": _joined([np.full(len(rows), part.thread) for part, rows in both], np.int32),
        "kind": _joined([part.kind[rows] for part, rows in both], np.uint8),
        "event": _joined([rows + first for first, rows in zip(firsts, chosen, strict=False)], np.int64),
    }
    jitted = np.unique(np.concatenate([np.empty(0, np.int32), *(part.names[part.jitted] for part in parts)]))
    reorder(columns, nesting_order(columns["thread"], columns["start_ns"], columns["end_ns"]))
    parent = parents(columns["thread"], columns["start_ns"], columns["end_ns"])
    twice = np.isin(columns["name"], jitted) & (parent != MISSING)
    twice &= columns["name"][np.maximum(parent, 0)] == columns["name"]
    above = np.where(twice, parent, np.arange(len(parent)))
    while not np.array_equal(further := above[above], above):  # Twice as many levels per round.
        above = further
    for key in columns:
        columns[key] = columns[key][~twice]
    number = np.cumsum(~twice) - 1
    parent = parent[~twice]
    columns["parent"] = np.where(parent == MISSING, MISSING, number[above[np.maximum(parent, 0)]]).astype(np.int32)
    columns["kind"] = _annotations(columns, jitted)
    rows = np.full(sum(sizes), MISSING, np.int32)
    rows[columns["event"]] = np.arange(len(columns["event"]))
    del columns["event"]
    return columns, rows, int(twice.sum())


def _joined(pieces: list[Array], dtype: type[np.generic]) -> Array:
    return np.concatenate([np.empty(0, dtype), *pieces], dtype=dtype)


def _annotations(columns: Columns, jitted: Array) -> Array:
    """Return the kinds; those of unknown name are the user's on a Python thread, outside all spans of the runtime."""
    kind, parent, thread = columns["kind"], columns["parent"], columns["thread"]
    programs = np.unique(thread[(kind == SliceKind.PYTHON) | (kind == SliceKind.ANNOTATION)
                                | np.isin(columns["name"], jitted)])  # fmt: skip
    inside = np.isin(kind, (SliceKind.OTHER, SliceKind.OP)) | ~np.isin(thread, programs)
    while True:  # One level of nesting per round.
        deeper = inside | np.where(parent == MISSING, False, inside[np.maximum(parent, 0)])
        if (deeper == inside).all():
            break
        inside = deeper
    return np.where(kind == PERHAPS, np.where(inside, SliceKind.OTHER, SliceKind.ANNOTATION), kind).astype(np.uint8)
