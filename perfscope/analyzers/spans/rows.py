"""Rows of a trace: their names and ancestors, spans with a known purpose per thread, and the work below them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.model.finding import MOST_SPANS, Removed, Span
from perfscope.model.intervals import Int64, Intervals, covered, numbered, union
from perfscope.model.trace import MISSING, CallKind, Rows, SliceKind, Trace
from perfscope.native import library as native_library

INPUT_REGION = "input"
"""Name of the user's region (``perfscope.region("input")``) that counts as data loading."""

_LOADER_PREFIXES = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")


def named_slices(trace: Trace, matches: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``slices`` for which ``matches(name)`` holds; each name of a row is tested once."""
    names, codes = trace.rows["slices"]["name"], trace.fact(names_of_slices)
    found = [code for code, text in codes.items() if matches(text)]
    if not found:
        return np.zeros(len(names), bool)
    chosen = np.zeros(len(trace.strings) + 1, bool)  # the last one is that of `MISSING`
    chosen[found] = True
    return chosen[names]


def names_of_slices(trace: Trace) -> dict[int, str]:
    """Return code and text of each name of a row of ``slices``; a fact of the trace."""
    codes, _ = numbered(trace.rows["slices"]["name"])
    return {code: trace.text(code) for code in codes.tolist()}


def slice_name(trace: Trace, row: int) -> str:
    """Return the name of a row of ``slices``."""
    return trace.text(int(trace.rows["slices"]["name"][row]))


def input_slices(trace: Trace) -> npt.NDArray[np.int64]:
    """Return the rows of ``slices`` in which the program fetches its next batch.

    PyTorch names them ``enumerate(DataLoader)#...``; a loader of the user counts if it is in a region named ``input``.
    """
    return _named(trace, lambda name: name.startswith(_LOADER_PREFIXES) or name == INPUT_REGION)


def input_spans(trace: Trace) -> dict[int, Intervals]:
    """Return the time in data loaders, per row of ``threads``."""
    return spans_by_thread(trace, "slices", input_slices(trace))


def allocator_spans(trace: Trace) -> dict[int, Intervals]:
    """Return the time in device memory calls (``cudaMalloc``, ``cudaFree`` ...), per row of ``threads``."""
    return spans_by_thread(trace, "calls", np.flatnonzero(trace.rows["calls"]["kind"] == CallKind.MEMORY))


def _named(trace: Trace, matches: Callable[[str], bool]) -> npt.NDArray[np.int64]:
    slices = trace.rows["slices"]
    rows = np.flatnonzero(named_slices(trace, matches))
    return rows[np.isin(slices["kind"][rows], [SliceKind.OP, SliceKind.ANNOTATION])]


def union_of(table: Rows, chosen: np.ndarray) -> Intervals:
    """Return when any of the chosen rows (a mask or positions) of a table with starts and ends was active."""
    return union(table["start_ns"][chosen], table["end_ns"][chosen])


def rows_by_device(trace: Trace) -> dict[str, tuple[Int64, ...]]:
    """Return, for ``kernels`` and ``copies``, the rows of each row of ``devices``, in the order of the table."""
    devices = np.arange(len(trace.rows["devices"]) + 1)
    result = {}
    for table in ("kernels", "copies"):
        device = trace.rows[table]["device"]
        order = np.argsort(device, kind="stable")
        result[table] = tuple(np.split(order, np.searchsorted(device[order], devices)[1:])[: len(devices) - 1])
    return result


def spans_by_thread(trace: Trace, table: str, rows: npt.NDArray[np.int64]) -> dict[int, Intervals]:
    """Return the union of the given rows of ``slices`` or ``calls``, per row of ``threads``."""
    data = trace.rows[table]
    threads = data["thread"][rows]
    return {int(thread): union_of(data, rows[threads == thread]) for thread in np.unique(threads)}


# The host span that covers a moment, and the enclosing span of a given kind. Vectorised.
#
# Both rely on the order of the ``slices`` table (thread, start, longest first) and on its parent links.


_Condition = Callable[[Int64, Int64], npt.NDArray[np.bool_]]


def covering_slices(trace: Trace, threads: npt.ArrayLike, times_ns: npt.ArrayLike) -> Int64:
    """Return the row of the innermost host span that covers each (thread, moment); ``MISSING`` without one.

    ``threads``: rows of the ``threads`` table; ``times_ns``: moments on the trace's clock. A span covers the moments
    from its start up to, not including, its end.
    """
    slices = trace.rows["slices"]
    thread, time = np.broadcast_arrays(np.asarray(threads, np.int64), np.asarray(times_ns, np.int64))
    result = np.full(len(thread), MISSING, np.int64)
    for value in np.unique(thread):
        first, last = np.searchsorted(slices["thread"], [value, value + 1])
        on_thread = thread == value
        index = first - 1 + np.searchsorted(slices["start_ns"][first:last], time[on_thread], side="right")
        result[on_thread] = np.where(index < first, MISSING, index)
    _climb_until(trace, result, lambda rows, positions: slices["end_ns"][rows] > time[positions])
    return result


def nearest_ancestor(trace: Trace, rows: npt.ArrayLike, wanted: npt.NDArray[np.bool_]) -> Int64:
    """Return, for each row of ``slices``, itself or its innermost enclosing span in ``wanted``; else ``MISSING``.

    ``wanted`` is a mask over the ``slices`` table. Rows that are ``MISSING`` stay ``MISSING``.
    """
    found = np.array(rows, np.int64)
    if native_library() is not None:
        return _enclosing(trace, found, wanted, outermost=False)
    deep = _climb_until(trace, found, lambda hit, _: wanted[hit], MOST_CLIMBS)
    if len(deep):
        found[deep] = _nearest_of_all(trace, wanted)[found[deep]]
    return found


def _enclosing(trace: Trace, rows: Int64, wanted: npt.NDArray[np.bool_], *, outermost: bool) -> Int64:
    from perfscope.native import sweep

    of_all = sweep.enclosing(trace.rows["slices"]["parent"], wanted, outermost=outermost)
    return np.asarray(np.append(of_all, np.int32(MISSING))[rows], np.int64)


MOST_CLIMBS = 64
"""Maximum number of parents tried one after another. Stacks of programs are seldom deeper; beyond it, all rows are
looked up at once in steps of doubling length, so that a malicious depth has no quadratic cost.
"""


def _nearest_of_all(trace: Trace, wanted: npt.NDArray[np.bool_]) -> Int64:
    """Return ``nearest_ancestor`` of every row of ``slices``."""
    rows = np.arange(len(wanted))
    nearest = np.append(np.where(wanted, rows, trace.rows["slices"]["parent"]), MISSING)  # MISSING is the last entry
    while True:
        further = nearest[nearest]
        if np.array_equal(further, nearest):
            return np.asarray(nearest[:-1], np.int64)
        nearest = further


def outermost_ancestor(trace: Trace, rows: npt.ArrayLike, wanted: npt.NDArray[np.bool_]) -> Int64:
    """Return the same as ``nearest_ancestor``, but the outermost span."""
    if native_library() is not None:
        return _enclosing(trace, np.asarray(rows, np.int64), wanted, outermost=True)
    outer = nearest_ancestor(trace, rows, wanted)
    parents = trace.rows["slices"]["parent"]
    while True:
        above = np.full(len(outer), MISSING, np.int64)
        above[outer != MISSING] = parents[outer[outer != MISSING]]
        further = nearest_ancestor(trace, above, wanted)
        if not (further != MISSING).any():
            return outer
        outer = np.where(further != MISSING, further, outer)


def outermost(trace: Trace, wanted: npt.NDArray[np.bool_]) -> Int64:
    """Return the rows of ``slices`` in ``wanted`` outside of other such rows, in order of the table."""
    rows = np.flatnonzero(wanted)
    return np.asarray(rows[nearest_ancestor(trace, trace.rows["slices"]["parent"][rows], wanted) == MISSING], np.int64)


def lineage(trace: Trace, row: int) -> Iterator[int]:
    """Yield the row itself, its parent, and so on outwards."""
    parents = trace.rows["slices"]["parent"]
    while row != MISSING:
        yield row
        row = int(parents[row])


def _climb_until(trace: Trace, rows: Int64, holds: _Condition, most: int | None = None) -> Int64:
    """Replace ``rows`` in place by their parents until ``holds(rows, their positions)`` or there is no parent.

    Return the positions that are unsettled after ``most`` parents.
    """
    parents = trace.rows["slices"]["parent"]
    active = np.flatnonzero(rows != MISSING)
    climbs = 0
    while len(active) and (most is None or climbs < most):
        active = active[~holds(rows[active], active)]
        rows[active] = parents[rows[active]]
        active = active[rows[active] != MISSING]
        climbs += 1
    return active


# The device work launched inside host spans, and the exposed part of it.


class WorkTime(Struct, frozen=True, kw_only=True):
    """Time of some device work, in ns."""

    sum_ns: int
    """Sum of durations."""
    exposed_ns: int
    """Time in which it was the only work on its device: removing it saves at most this."""
    kernels: int
    """Number of kernels and copies."""

    def __add__(self, other: WorkTime) -> WorkTime:
        return WorkTime(
            sum_ns=self.sum_ns + other.sum_ns,
            exposed_ns=self.exposed_ns + other.exposed_ns,
            kernels=self.kernels + other.kernels,
        )


WORK_TABLES: tuple[Literal["kernels", "copies"], ...] = ("kernels", "copies")
NO_WORK = WorkTime(sum_ns=0, exposed_ns=0, kernels=0)


def work_time(trace: Trace, spans: npt.ArrayLike) -> WorkTime:
    """Return the device work launched inside the given rows of ``slices`` (nested rows count once)."""
    total = NO_WORK
    for table in ("kernels", "copies"):
        total += time_of(trace, table, work_inside(trace, table, np.asarray(spans, np.int64)))
    return total


def time_of(trace: Trace, table: str, rows: Int64) -> WorkTime:
    """Return the time of rows of ``kernels`` or ``copies``."""
    work = trace.rows[table]
    exposed = int(trace.fact(unshared_time)[table][rows].sum())
    return WorkTime(
        sum_ns=int((work["end_ns"][rows] - work["start_ns"][rows]).sum()), exposed_ns=exposed, kernels=len(rows)
    )


def work_inside(trace: Trace, table: str, spans: Int64) -> Int64:
    """Return the rows of ``kernels`` or ``copies`` whose op is in ``spans`` or inside one of them.

    Sorted, each once.
    """
    order, ops = trace.fact(_work_by_op)[table]
    firsts, lasts = np.searchsorted(ops, spans), np.searchsorted(ops, trace.fact(subtree_ends)[spans])
    pieces = [order[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
    return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)


def removed_inside(trace: Trace, spans: Int64, left: float = 0.0) -> tuple[Removed, ...]:
    """Return a fix that leaves ``left`` (0 to 1) of the work inside host spans, and none of their host time.

    If no device worked, the host time is the work.
    """
    work = [Removed(table=table, rows=work_inside(trace, table, spans), left=left) for table in WORK_TABLES]
    on_device = len(trace.rows["kernels"]) > 0
    return (Removed(table="slices", rows=spans, left=0.0 if on_device else left), *work)


def removed_time(spans: Intervals) -> Removed:
    """Return the removal of time in which the device waited for the host, or the host for nothing recorded."""
    return Removed(table="idle", rows=np.stack(spans, axis=1))


def subtree_ends(trace: Trace) -> Int64:
    """Return, per row of ``slices``, one past the last row inside it; those rows follow it directly."""
    slices = trace.rows["slices"]
    ends = np.arange(1, len(slices) + 1)
    for thread in np.unique(slices["thread"]):
        first, last = np.searchsorted(slices["thread"], [thread, thread + 1])
        reach = first + np.searchsorted(slices["start_ns"][first:last], slices["end_ns"][first:last], side="left")
        ends[first:last] = np.maximum(ends[first:last], reach)
    return ends


def unshared_time(trace: Trace) -> dict[str, Int64]:
    """Return, per row of ``kernels`` and of ``copies``, the ns in which it is the only work on its device."""
    tables = {table: trace.rows[table] for table in ("kernels", "copies")}
    result = {table: np.zeros(len(work), np.int64) for table, work in tables.items()}
    by_device = trace.fact(rows_by_device)
    for device in range(len(trace.rows["devices"])):
        here = {table: by_device[table][device] for table in tables}
        starts, ends = (
            np.concatenate([work[column][here[table]] for table, work in tables.items()])
            for column in ("start_ns", "end_ns")
        )
        times, change = np.concatenate((starts, ends)), np.repeat([1, -1], len(starts))
        order = np.lexsort((change, times))  # at equal times, ends come before begins
        times, running = times[order], np.cumsum(change[order])
        alone = union(times[:-1][running[:-1] == 1], times[1:][running[:-1] == 1])
        for table, rows in here.items():
            result[table][rows] = covered(alone, tables[table]["start_ns"][rows], tables[table]["end_ns"][rows])
    return result


def _work_by_op(trace: Trace) -> dict[str, tuple[Int64, Int64]]:
    """Return, by table, its rows ordered by op, and the op of each."""
    result = {}
    for table in ("kernels", "copies"):
        ops = trace.rows[table]["op"].astype(np.int64)
        order = np.argsort(ops, kind="stable")
        result[table] = (order, ops[order])
    return result


# The time spans in which a finding costs most, for a timeline.


def worst_spans(starts: npt.ArrayLike, ends: npt.ArrayLike, costs: npt.ArrayLike) -> tuple[Span, ...]:
    """Return the costliest spans with a cost, from arrays of equal length (ns, ns on the trace's clock; cost)."""
    cost = np.asarray(costs)
    order = np.argsort(-cost, kind="stable")[:MOST_SPANS]
    begins, stops = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    return tuple(
        Span(start_ns=int(begins[index]), end_ns=int(stops[index])) for index in order.tolist() if cost[index] > 0
    )


def spans_of_ranks(pieces: Iterable[tuple[int | None, int, int]]) -> tuple[Span, ...]:
    """Return the first spans of (rank, start, end), each on the clock of its rank's trace; sorted costliest first."""
    spans = [Span(start_ns=start, end_ns=end, rank=rank) for rank, start, end in pieces]
    return tuple(spans[:MOST_SPANS])


# Self time of host ops: without an accelerator it replaces kernel time.


class OpTime(Struct, frozen=True, kw_only=True):
    """One entry per op, as arrays of equal length. Times in ns."""

    row: Int64
    """Row of ``slices``."""
    self_ns: Int64
    """Duration without the ops directly inside it."""

    def total_ns(self) -> int:
        """Time in ops, each moment of a thread once."""
        return int(self.self_ns.sum())


def op_times(trace: Trace) -> OpTime:
    """Return the self time of every op: its duration minus that of the ops directly inside it, on the same thread."""
    slices = trace.rows["slices"]
    is_op = slices["kind"] == SliceKind.OP
    rows = np.flatnonzero(is_op)
    parents = nearest_ancestor(trace, slices["parent"][rows], is_op)
    duration = slices["end_ns"] - slices["start_ns"]
    inside = np.zeros(len(slices), np.int64)
    nested = parents != MISSING
    np.add.at(inside, parents[nested], duration[rows[nested]])
    return OpTime(row=rows, self_ns=duration[rows] - inside[rows])
