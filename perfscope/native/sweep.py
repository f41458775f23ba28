"""Sweeps over sorted spans by the native library. The twin of each is in the module that calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfscope.native import FaultError, library
from perfscope.native.arrays import Array, count, pointer

_NO_MEMORY = -2


def _library() -> ctypes.CDLL:
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
    return native


def parents(thread: Array, start: Array, end: Array) -> Array:
    """Return the row of the innermost span of the same thread that encloses each span, or -1; shape (n,), int32.

    ``thread``, ``start`` and ``end`` are by thread, then start, then longest first. ``MemoryError`` if memory runs out,
    ``FaultError`` if the library fails, here and below.
    """
    native = _library()
    native.perfscope_parents.restype = ctypes.c_int64
    result = np.empty(len(start), np.int32)
    thread = np.ascontiguousarray(thread, np.int32)
    start, end = np.ascontiguousarray(start, np.int64), np.ascontiguousarray(end, np.int64)
    done = native.perfscope_parents(pointer(thread), pointer(start), pointer(end), count(result), pointer(result))
    if done < 0:
        raise FaultError
    if done != 0:
        raise MemoryError
    return result


class Host(NamedTuple):
    """Columns of ``slices``, in its order, and of ``calls``; int64, ``parents`` int32."""

    starts: Array
    ends: Array
    parents: Array
    works: Array
    """Whether a span is an op or inside one."""
    call_starts: Array
    call_ends: Array


class Thread(NamedTuple):
    """Rows of one thread."""

    number: int
    first: int
    """First row of ``slices``."""
    last: int
    """The row after the last one."""
    calls: Array
    """Rows of ``calls`` that have a duration and are in no other call, in order; int64."""


class _HostColumns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("starts", "ends", "parents", "works")),
        ("spans", ctypes.c_size_t),
        *((name, ctypes.c_void_p) for name in ("call_starts", "call_ends")),
        ("calls", ctypes.c_size_t),
    ]


class _ThreadRows(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int64),
        *((name, ctypes.c_size_t) for name in ("first", "last")),
        ("calls", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    ]


class _LaneColumns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("starts", "threads", "slices", "calls")),
        ("room", ctypes.c_size_t),
    ]


def lane(host: Host, threads: Sequence[Thread], cuts: Array, low: int, high: int, main: int) -> list[Array]:
    """Return bounds (int64, shape (m + 1,)), thread, slice and call (int32, (m,)) of the lane of ``[low, high)`` ns.

    The first of ``threads`` is the main thread, if there is any. ``cuts``: sorted times at which a piece ends.
    """
    native = _library()
    native.perfscope_lane.restype = ctypes.c_int64
    kinds = (np.int64, np.int64, np.int32, np.bool_, np.int64, np.int64)
    held = Host._make(np.ascontiguousarray(column, kind) for column, kind in zip(host, kinds, strict=True))
    given = (_ThreadRows * len(threads))(
        *(_ThreadRows(one.number, one.first, one.last, pointer(one.calls), len(one.calls)) for one in threads)
    )
    cuts = np.ascontiguousarray(cuts, np.int64)
    room = 2 * sum(one.last - one.first + len(one.calls) for one in threads) + len(cuts) + 2
    columns = [np.empty(room, kind) for kind in (np.int64, np.int32, np.int32, np.int32)]
    made = native.perfscope_lane(
        ctypes.byref(
            _HostColumns(*map(pointer, held[:4]), len(held.starts), *map(pointer, held[4:]), len(held.call_starts))
        ),
        given, ctypes.c_size_t(len(threads)), pointer(cuts), count(cuts),
        *map(ctypes.c_int64, (low, high, main)),
        ctypes.byref(_LaneColumns(*map(pointer, columns), room)),
    )  # fmt: skip
    if made == _NO_MEMORY:
        raise MemoryError
    if made < 0:
        raise FaultError
    columns[0][made] = high
    return [columns[0][: made + 1], *(column[:made] for column in columns[1:])]


def replay(earliest: Array, durations: Array, before: Array, lag: Array) -> Array:
    """Return the end of each node of a graph, int64: the duration after its begin.

    It begins at ``earliest``, and ``lag`` after the end of each node ``before`` it; both have shape (3, nodes), -1 for
    none. A node is after what it waits for.
    """
    native = _library()
    native.perfscope_replay.restype = ctypes.c_int64
    ends = np.empty(len(earliest), np.int64)
    held = [np.ascontiguousarray(column, np.int64) for column in (earliest, durations, before, lag)]
    if native.perfscope_replay(*map(pointer, held), count(ends), pointer(ends)) < 0:
        raise FaultError
    return ends


def enclosing(parents: Array, wanted: Array, *, outermost: bool) -> Array:
    """Return the innermost or outermost wanted span around each span, itself included, or -1; shape (n,), int32.

    ``parents``: rows before their children's, -1 for none.
    """
    native = _library()
    native.perfscope_enclosing.restype = ctypes.c_int64
    result = np.empty(len(parents), np.int32)
    parents, wanted = np.ascontiguousarray(parents, np.int32), np.ascontiguousarray(wanted, np.bool_)
    if native.perfscope_enclosing(
        pointer(parents), pointer(wanted), count(result), ctypes.c_int64(outermost), pointer(result)
    ):
        raise FaultError
    return result


class _NestedColumns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("thread", "start", "end", "parent")),
        ("count", ctypes.c_size_t),
    ]


def innermost(spans: Sequence[Array], thread: Array, start: Array, end: Array) -> Array:
    """Return the row of the innermost span that encloses each ``[start, end)`` of ``thread``, or -1; shape (m,), int32.

    ``spans``: thread, start, end and parent of spans in nesting order, shapes (n,).
    """
    native = _library()
    native.perfscope_innermost.restype = ctypes.c_int64
    types = (np.int32, np.int64, np.int64, np.int32)
    held = [np.ascontiguousarray(column, of) for column, of in zip(spans, types, strict=True)]
    asked = [np.ascontiguousarray(column, of) for column, of in zip((thread, start, end), types[:3], strict=True)]
    result = np.empty(len(start), np.int32)
    done = native.perfscope_innermost(
        ctypes.byref(_NestedColumns(*map(pointer, held), len(held[0]))),
        *map(pointer, asked), count(result), pointer(result),
    )  # fmt: skip
    if done != 0:
        raise FaultError
    return result


def path(before: Array, lag: Array, ends: Array, alone: Array, last: int) -> tuple[Array, Array]:
    """Return (nodes from ``last`` backwards, each after the one that it waited for last; lag after each).

    ``before``, ``lag``: as in ``replay``; ``alone``: time from which on each node may have begun by itself.
    """
    native = _library()
    native.perfscope_path.restype = ctypes.c_int64
    held = [np.ascontiguousarray(column, np.int64) for column in (before, lag, ends, alone)]
    nodes, lags = np.empty(len(ends), np.int64), np.empty(len(ends), np.int64)
    found = native.perfscope_path(
        *map(pointer, held), count(nodes), ctypes.c_size_t(last), pointer(nodes), pointer(lags)
    )
    if found < 0:
        raise FaultError
    return nodes[:found].copy(), lags[:found].copy()


def time_by_slice(bounds: Array, slices: Array, starts: Array, ends: Array, rows: int) -> tuple[Array, Array]:
    """Return the time, ns, and the number of pieces of a lane in intervals by slice; the first is for no slice, -1.

    ``bounds``: begin of each piece and end of the last, int64; ``slices``: of each piece, int32, below ``rows``.
    """
    native = _library()
    native.perfscope_time_by_slice.restype = ctypes.c_int64
    bounds, slices = np.ascontiguousarray(bounds, np.int64), np.ascontiguousarray(slices, np.int32)
    asked = [np.ascontiguousarray(column, np.int64) for column in (starts, ends)]
    time, pieces = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    done = native.perfscope_time_by_slice(
        pointer(bounds), pointer(slices), count(slices), ctypes.byref(_Intervals(*map(pointer, asked), len(starts))),
        pointer(time), pointer(pieces), count(time),
    )  # fmt: skip
    if done < 0:
        raise FaultError
    return time, pieces


class _Intervals(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_void_p) for name in ("starts", "ends")), ("count", ctypes.c_size_t)]


Pair = tuple[Array, Array]
"""Starts and ends of intervals, int64, shapes (n,)."""


def union(starts: Array, ends: Array) -> Pair:
    """Return the disjoint union of any intervals."""
    return _intervals(0, (starts, ends), None)


def intersection(first: Pair, second: Pair) -> Pair:
    """Return the parts in both disjoint sets."""
    return _intervals(1, first, second)


def difference(first: Pair, second: Pair) -> Pair:
    """Return the parts of a disjoint set that are not in the other."""
    return _intervals(2, first, second)


def _held(pair: Pair | None) -> tuple[_Intervals, Pair | None]:
    """Return a set as an argument, and the arrays that must outlive its use."""
    if pair is None:
        return _Intervals(), None
    starts, ends = (np.ascontiguousarray(column, np.int64) for column in pair)
    return _Intervals(starts.ctypes.data, ends.ctypes.data, len(starts)), (starts, ends)


def _intervals(what: int, first: Pair, second: Pair | None) -> Pair:
    native = _library()
    native.perfscope_intervals.restype = ctypes.c_int64
    (left, _held_left), (right, _held_right) = _held(first), _held(second)
    room = left.count + right.count
    result = np.empty((2, room), np.int64)
    into = _Intervals(result.ctypes.data, result.ctypes.data + result.itemsize * room, room)
    made = native.perfscope_intervals(ctypes.c_int64(what), *map(ctypes.byref, (left, right, into)))
    if made == _NO_MEMORY:
        raise MemoryError
    if made < 0:
        raise FaultError
    return result[0, :made], result[1, :made]


def covered(busy: Pair, starts: Array, ends: Array) -> Array:
    """Return how much of each interval is in a disjoint set, ns; shape (n,), int64."""
    native = _library()
    native.perfscope_covered.restype = ctypes.c_int64
    (inside, _held_busy), (asked, _held_asked) = _held(busy), _held((starts, ends))
    result = np.empty(len(starts), np.int64)
    done = native.perfscope_covered(ctypes.byref(inside), ctypes.byref(asked), pointer(result))
    if done == _NO_MEMORY:
        raise MemoryError
    if done < 0:
        raise FaultError
    return result
