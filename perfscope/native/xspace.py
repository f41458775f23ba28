"""Events of a line of an XSpace by the native library. Its twin is ``analyzers/readers/xspace/events.py``."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from msgspec import Struct

from perfscope.native import library
from perfscope.native.arrays import Array, count, cut_texts, pointer

_TEXTS, _TEXT_BYTES, _STATS = range(3)
"""Numbers of sizes, as in ``src/lib.rs``."""

_MEMORY = 2
_WRITTEN = 0


class _EventColumns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("metadata", "offset", "duration", "occurrences", "values")),
        ("count", ctypes.c_size_t),
    ]


class NativeLine(Struct, frozen=True, kw_only=True):
    """The columns of a line, one entry per event."""

    metadata: Array
    offset_ps: Array
    duration_ps: Array
    occurrences: Array
    values: Array
    """Last floating-point stat of each event that is not 0; NaN without one."""
    stats: list[Array | None]
    """A column per wanted stat, -1 where an event lacks it; texts are codes of ``texts``. ``None``: no event has it."""
    texts: list[str | int]
    """Texts by code: written in an event, or the number of the name that the event refers to."""
    own: bytes
    """The fields of the line itself."""


def read_line(
    data: bytes | memoryview | mmap.mmap, start: int, end: int, numbers: list[int], texts: list[int]
) -> NativeLine | None:
    """Return the line at bytes ``start`` to ``end``; ``None`` if its form is not the usual one.

    ``numbers`` and ``texts``: metadata ids of the stats that are read as such, in the order of ``NativeLine.stats``.
    ``MemoryError`` if memory runs out.
    """
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
    native.perfscope_xspace_extent.restype = ctypes.c_int64
    native.perfscope_xspace_size.restype = native.perfscope_xspace_take.restype = ctypes.c_int64
    native.perfscope_xspace_read.restype = ctypes.c_void_p
    content, size = np.frombuffer(data, np.uint8), ctypes.c_size_t(end - start)
    extent = np.empty(3, np.int64)
    if native.perfscope_xspace_extent(pointer(content, start), size, pointer(extent)) != 0:
        return None
    events, first, after = extent.tolist()
    columns = [*(np.empty(events, np.int64) for _ in range(4)), np.empty(events, np.float64)]
    ids = np.array([*numbers, *texts], np.int64)
    kinds = np.array([0] * len(numbers) + [1] * len(texts), np.uint8)
    status = ctypes.c_int64()
    address = native.perfscope_xspace_read(
        pointer(content, start), size, ctypes.c_size_t(first),
        ctypes.byref(_EventColumns(*map(pointer, columns), events)),
        pointer(ids), pointer(kinds), count(ids), ctypes.byref(status),
    )  # fmt: skip
    del content  # So that the file can be closed.
    if status.value == _MEMORY:
        raise MemoryError
    if address is None:
        return None
    line = ctypes.c_void_p(address)
    try:
        stats, found = _stats(native, line, events, len(ids))
    finally:
        native.perfscope_xspace_free(line)
    own = bytes(data[start : start + first]) + bytes(data[start + after : end])
    metadata, offset, duration, occurrences, values = columns
    return NativeLine(
        metadata=metadata,
        offset_ps=offset,
        duration_ps=duration,
        occurrences=occurrences,
        values=values,
        stats=stats,
        texts=found,
        own=own,
    )


def _stats(
    native: ctypes.CDLL, line: ctypes.c_void_p, events: int, wanted: int
) -> tuple[list[Array | None], list[str | int]]:
    def size(what: int) -> int:
        return int(native.perfscope_xspace_size(line, ctypes.c_size_t(what)))

    stats: list[Array | None] = []
    for stat in range(wanted):
        values = np.empty(events, np.int64) if size(_STATS + stat) else None
        if values is not None:
            native.perfscope_xspace_take(line, ctypes.c_size_t(stat), pointer(values), count(values))
        stats.append(values)
    texts = cut_texts(
        size(_TEXTS), size(_TEXT_BYTES), lambda joined, ends: native.perfscope_xspace_texts(line, joined, ends)
    )
    return stats, [
        text[1:].decode() if text[0] == _WRITTEN else int.from_bytes(text[1:], "little", signed=True) for text in texts
    ]
