"""Sweeps over sorted spans by the native library. The twin of each is in the module that calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfscope.native import FaultError, library
from perfscope.native.arrays import Array, count, pointer


def parents(thread: Array, start: Array, end: Array) -> Array:
    """Return the row of the innermost span of the same thread that encloses each span, or -1; shape (n,), int32.

    ``thread``, ``start`` and ``end`` are by thread, then start, then longest first. ``MemoryError`` if memory runs out,
    ``FaultError`` if the library fails, here and below.
    """
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
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


class Pieces(NamedTuple):
    """Times at which one thread is inside a span or a call: disjoint, sorted, none empty; shapes (n,), int64."""

    thread: int
    starts: Array
    ends: Array
    slices: Array
    calls: Array
    works: Array
    """Whether the thread is inside an op or a call, not only in Python; bool."""


class _ThreadPieces(ctypes.Structure):
    _fields_ = [
        ("thread", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("starts", "ends", "slices", "calls", "works")),
        ("count", ctypes.c_size_t),
    ]


class _LaneColumns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("starts", "ends", "threads", "slices", "calls")),
        ("room", ctypes.c_size_t),
    ]


def lane(threads: Sequence[Pieces], cuts: Array, low: int, high: int, main: int) -> list[Array]:
    """Return starts, ends, thread, slice and call of the lane of ``[low, high)`` ns, int64, shapes (m,).

    The first of ``threads`` is the main thread, if it has any pieces. ``cuts``: sorted times at which a piece ends.
    """
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
    native.perfscope_lane.restype = ctypes.c_int64
    held = [
        Pieces(
            thread=pieces.thread,
            starts=np.ascontiguousarray(pieces.starts, np.int64),
            ends=np.ascontiguousarray(pieces.ends, np.int64),
            slices=np.ascontiguousarray(pieces.slices, np.int64),
            calls=np.ascontiguousarray(pieces.calls, np.int64),
            works=np.ascontiguousarray(pieces.works, np.uint8),
        )
        for pieces in threads
    ]
    given = (_ThreadPieces * len(held))(
        *(_ThreadPieces(one.thread, *map(pointer, one[1:]), len(one.starts)) for one in held)
    )
    cuts = np.ascontiguousarray(cuts, np.int64)
    room = 2 * sum(len(one.starts) for one in held) + len(cuts) + 1
    columns = [np.empty(room, np.int64) for _ in range(5)]  # Only the part that is written takes memory.
    made = native.perfscope_lane(
        given, ctypes.c_size_t(len(held)), pointer(cuts), count(cuts),
        *map(ctypes.c_int64, (low, high, main)),
        ctypes.byref(_LaneColumns(*map(pointer, columns), room)),
    )  # fmt: skip
    if made < 0:
        raise FaultError
    return [column[:made] for column in columns]


class _NestedColumns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("thread", "start", "end", "parent")),
        ("count", ctypes.c_size_t),
    ]


def innermost(spans: Sequence[Array], thread: Array, start: Array, end: Array) -> Array:
    """Return the row of the innermost span that encloses each ``[start, end)`` of ``thread``, or -1; shape (m,), int32.

    ``spans``: thread, start, end and parent of spans in nesting order, shapes (n,).
    """
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
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


def distinct(values: Array) -> Array:
    """Return each value once, in order; shape (k,), int64. ``values``: an array of int64, which is overwritten."""
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
    native.perfscope_distinct.restype = ctypes.c_int64
    kept = native.perfscope_distinct(pointer(values), count(values))
    if kept < 0:
        raise FaultError
    return values[:kept]
