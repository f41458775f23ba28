"""Scan of Kineto events to columns by the native library. Its twin is ``analyzers/readers/kineto/decode.py``."""

from __future__ import annotations

import ctypes
import mmap
from types import TracebackType

import numpy as np

from perfscope.native import FaultError, library
from perfscope.native.arrays import Array, count, cut_texts, pointer

SLICE, CALL, KERNEL, COPY, SYNC, PYTHON, MARK, DROPPED, REST = 0, 1, 2, 3, 4, 6, 7, 8, 9
"""Groups of a category, as in ``src/kineto.rs``.

``PYTHON``: slices without arguments; ``MARK``: left to Python if it is a step; ``DROPPED``: counted; ``REST``: left to
Python.
"""

_WIDE = (
    "place", "start_ns", "end_ns", "external_id", "correlation", "device", "stream", "bytes", "sequence",
    "forward_thread", "blocks", "address", "allocated_bytes", "reserved_bytes", "device_type",
)  # fmt: skip
_NARROW = ("name", "category", "thread", "shapes", "dtypes", "strides", "values", "threads_per_block")
_NUMBERS = {name: number for number, name in enumerate((*_WIDE, *_NARROW, "occupancy"))}

_SPAN = ("place", "start_ns", "end_ns", "name", "external_id")
TABLES: dict[str, tuple[str, ...]] = {
    "slices": (*_SPAN, "category", "thread", "sequence", "forward_thread", "shapes", "dtypes", "strides", "values"),
    "calls": (*_SPAN, "correlation", "thread"),
    "kernel": (*_SPAN, "correlation", "device", "stream", "blocks", "threads_per_block", "occupancy"),
    "copy": (*_SPAN, "correlation", "device", "stream", "bytes"),
    "sync": (*_SPAN, "correlation", "device", "stream"),
    "memory": (
        "place", "start_ns", "bytes", "device", "address", "allocated_bytes", "reserved_bytes", "device_type", "thread",
    ),
}  # fmt: skip
"""Columns of each table. Names, categories, threads and arguments are codes of the texts of ``Scan.texts``."""

_EVENTS, _REST, _TEXTS = 6, 7, 8
"""Numbers of sizes, as in ``src/lib.rs``."""

_MEMORY = 2

STRINGS, THREADS, CATEGORIES = 0, 1, 2
"""Dictionaries of texts."""


class _Column:
    """Memory of a column, released with the last array that uses it."""

    def __init__(
        self, native: ctypes.CDLL, scan: ctypes.c_void_p, table: int, column: int, kind: np.dtype[np.generic]
    ) -> None:
        self._column = None
        self._native, values, size = native, ctypes.c_size_t(), ctypes.c_size_t()
        native.perfscope_kineto_take.restype = ctypes.c_void_p
        self._column = native.perfscope_kineto_take(
            scan, ctypes.c_size_t(table), ctypes.c_size_t(column), ctypes.byref(values), ctypes.byref(size)
        )
        if self._column is None:
            raise FaultError
        self.__array_interface__ = {
            "shape": (size.value,), "typestr": kind.str, "data": (values.value, False), "version": 3
        }  # fmt: skip

    def __del__(self) -> None:
        if self._column is not None:
            self._native.perfscope_kineto_drop(ctypes.c_void_p(self._column))


class Scan:
    """Columns of the usual events of one file, and the places of the others. Not for two threads at once."""

    def __init__(self, text: bytes | mmap.mmap, groups: dict[str, int]) -> None:
        """``text``: the file; ``groups``: group of each known category in lower case, in quotes as in the file."""
        native = library()
        if native is None:
            raise RuntimeError("the native library is not loaded")
        self._native = native
        self._bytes: Array | None = np.frombuffer(text, np.uint8)
        self._position = ctypes.c_size_t()
        native.perfscope_kineto_new.restype = ctypes.c_void_p
        for name in ("scan", "rest", "size"):
            getattr(native, f"perfscope_kineto_{name}").restype = ctypes.c_int64
        names = "\n".join(groups).encode()
        numbers = np.array(list(groups.values()), np.uint8)
        self._scan = ctypes.c_void_p(
            native.perfscope_kineto_new(names, ctypes.c_size_t(len(names)), pointer(numbers), count(numbers))
        )

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._native.perfscope_kineto_free(self._scan)
        self._bytes = None  # So that the file can be closed.

    def read(self, start: int, soft_end: int, end: int) -> tuple[int, bool]:
        """Read the events that begin in bytes ``start`` to ``soft_end`` of a range that ends at ``end``.

        Return the position reached, and whether the library cannot read an event there.
        ``MemoryError`` if memory runs out, ``FaultError`` if the library fails.
        """
        assert self._bytes is not None
        result = self._native.perfscope_kineto_scan(
            self._scan,
            pointer(self._bytes),
            *map(ctypes.c_size_t, (end, start, soft_end)),
            ctypes.byref(self._position),
        )
        if result < 0:
            raise FaultError
        if result == _MEMORY:
            raise MemoryError
        return self._position.value, result == 1

    def skip(self, events: int) -> None:
        """Count events that Python read itself, so that later ones have the right place."""
        self._native.perfscope_kineto_skip(self._scan, ctypes.c_int64(events))

    @property
    def events(self) -> int:
        """Number of events so far, with those that are left to Python and those that were skipped."""
        return self._size(_EVENTS)

    def rest(self) -> Array:
        """Return first byte, byte after and place of each event that is left to Python; shape (events, 3), int64."""
        found = np.empty(self._size(_REST), np.int64)
        self._native.perfscope_kineto_rest(self._scan, pointer(found), count(found))
        return found.reshape(-1, 3)

    def texts(self, number: int) -> list[bytes]:
        """Return the texts of a dictionary by code, as written in the file."""
        return cut_texts(
            self._size(_TEXTS + 2 * number),
            self._size(_TEXTS + 2 * number + 1),
            lambda joined, ends: self._native.perfscope_kineto_texts(self._scan, ctypes.c_size_t(number), joined, ends),
        )

    def take(self, table: str) -> dict[str, Array]:
        """Move the columns of a table out, in the order of the file; empty if it has no rows."""
        number = list(TABLES).index(table)
        rows = self._size(number)
        columns: dict[str, Array] = {}
        for name in TABLES[table] if rows else ():
            kind = np.int64 if name in _WIDE else np.float32 if name == "occupancy" else np.int32
            columns[name] = np.asarray(_Column(self._native, self._scan, number, _NUMBERS[name], np.dtype(kind)))
            if len(columns[name]) != rows:
                raise FaultError(f"{len(columns[name])} of {rows} values of {table}.{name}")
        return columns

    def _size(self, what: int) -> int:
        return int(self._native.perfscope_kineto_size(self._scan, ctypes.c_size_t(what)))
