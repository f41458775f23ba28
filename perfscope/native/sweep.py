"""Sweeps over sorted spans by the native library. The twin of each is in the module that calls it."""

from __future__ import annotations

import ctypes

import numpy as np

from perfscope.native import library
from perfscope.native.arrays import Array, count, pointer


def parents(thread: Array, start: Array, end: Array) -> Array:
    """Return the row of the innermost span of the same thread that encloses each span, or -1; shape (n,), int32.

    ``thread``, ``start`` and ``end`` are by thread, then start, then longest first. ``MemoryError`` if memory runs out.
    """
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
    native.perfscope_parents.restype = ctypes.c_int64
    result = np.empty(len(start), np.int32)
    thread = np.ascontiguousarray(thread, np.int32)
    start, end = np.ascontiguousarray(start, np.int64), np.ascontiguousarray(end, np.int64)
    if native.perfscope_parents(pointer(thread), pointer(start), pointer(end), count(result), pointer(result)) != 0:
        raise MemoryError
    return result


def distinct(values: Array) -> Array:
    """Return each value once, in order; shape (k,), int64. ``values``: an array of int64, which is overwritten."""
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
    native.perfscope_distinct.restype = ctypes.c_int64
    kept = native.perfscope_distinct(pointer(values), count(values))
    if kept < 0:
        raise RuntimeError("the native library failed")
    return values[:kept]
