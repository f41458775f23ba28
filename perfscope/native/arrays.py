"""Arrays of numpy as arguments of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def pointer(array: Array, offset: int = 0) -> ctypes.c_void_p:
    """Return the address of an array's data, or of a byte in it; the array must outlive its use."""
    return ctypes.c_void_p(array.ctypes.data + offset)


def count(array: Array) -> ctypes.c_size_t:
    """Return the number of an array's values."""
    return ctypes.c_size_t(len(array))


def cut_texts(number: int, size: int, fill: Callable[[ctypes.c_void_p, ctypes.c_void_p], Any]) -> list[bytes]:
    """Return ``number`` texts of ``size`` bytes in all. ``fill`` writes their bytes and the position after each."""
    ends, joined = np.empty(number, np.int64), np.empty(size, np.uint8)
    fill(pointer(joined), pointer(ends))
    content, start = joined.tobytes(), 0
    found = []
    for end in ends.tolist():
        found.append(content[start:end])
        start = end
    return found
