"""Which host span covers a moment, and which enclosing span is of a given kind. Vectorised.

Both rest on the order of the ``slices`` table (thread, start, longest first) and on its parent links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from perfscope.model.trace import MISSING, Trace

Rows = npt.NDArray[np.int64]
_Condition = Callable[[Rows, Rows], npt.NDArray[np.bool_]]


def covering_slices(trace: Trace, threads: npt.ArrayLike, times_ns: npt.ArrayLike) -> Rows:
    """Row of the innermost host span that covers each (thread, moment); ``MISSING`` where none does.

    ``threads``: rows of the ``threads`` table; ``times_ns``: moments on the trace's clock. A span
    covers the moments from its start up to, not including, its end.
    """
    slices = trace.rows["slices"]
    thread, time = np.broadcast_arrays(np.asarray(threads, np.int64), np.asarray(times_ns, np.int64))
    found = np.full(len(thread), MISSING, np.int64)
    for value in np.unique(thread):
        first, last = np.searchsorted(slices["thread"], [value, value + 1])
        asked = thread == value
        index = first - 1 + np.searchsorted(slices["start_ns"][first:last], time[asked], side="right")
        found[asked] = np.where(index < first, MISSING, index)
    return _climb_until(trace, found, lambda rows, at: slices["end_ns"][rows] > time[at])


def nearest_ancestor(trace: Trace, rows: npt.ArrayLike, wanted: npt.NDArray[np.bool_]) -> Rows:
    """For each row of ``slices``: itself or its innermost enclosing span with ``wanted``; else ``MISSING``.

    ``wanted`` is a mask over the ``slices`` table. Rows that are ``MISSING`` stay so.
    """
    return _climb_until(trace, np.array(rows, np.int64), lambda found, _: wanted[found])


def lineage(trace: Trace, row: int) -> Iterator[int]:
    """The row itself, its parent, and so on outwards."""
    parents = trace.rows["slices"]["parent"]
    while row != MISSING:
        yield row
        row = int(parents[row])


def _climb_until(trace: Trace, rows: Rows, holds: _Condition) -> Rows:
    """Replaces rows by their parents until ``holds(rows, their positions)`` or no parent is left."""
    parents = trace.rows["slices"]["parent"]
    active = np.flatnonzero(rows != MISSING)
    while len(active):
        active = active[~holds(rows[active], active)]
        rows[active] = parents[rows[active]]
        active = active[rows[active] != MISSING]
    return rows
