"""Sweeps over sorted spans by the native library. Their twins are beside their callers."""

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
    held = [np.ascontiguousarray(thread, np.int32), *(np.ascontiguousarray(times, np.int64) for times in (start, end))]
    if native.perfscope_parents(*map(pointer, held), count(result), pointer(result)) != 0:
        raise MemoryError
    return result
