"""Memory snapshots of CUDA by the native library. Its twin is ``analyzers/readers/torch_memory``."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.native import library
from perfscope.native.arrays import Array, pointer

_MEMORY = 2
_NUMBERS = ("addr", "size", "stream", "time_us", "device_free")
_CODES = ("action", "pool_id", "frame")
_FIRST = 5
_PARTS = len(_NUMBERS) + len(_CODES) + 4
"""Parts of the snapshot, and of each device, as in ``src/snapshot.rs``."""


class NativeHistory(Struct, frozen=True, kw_only=True):
    """The history of one device, one entry per event: int64 for numbers, int32 codes for words and ``frame``."""

    columns: dict[str, Array]
    words: dict[str, list[str]]
    """Texts of the codes in ``action`` and ``pool_id``."""


class NativeSnapshot(Struct, frozen=True, kw_only=True):
    """A memory snapshot whose histories are columns."""

    texts: list[str]
    frames: Array
    """Code of the file, line and code of the name of each frame; shape (frames, 3), int32."""
    rows: Array
    """Row of the caller, and number of the frame; shape (rows, 2), int32."""
    rest: bytes
    """A pickle of everything else that is read."""
    histories: list[NativeHistory]


def read_snapshot(data: bytes | mmap.mmap) -> NativeSnapshot | None:
    """Return the snapshot; ``None`` if it is left to Python. ``MemoryError`` if memory runs out."""
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
    native.perfscope_snapshot_read.restype = ctypes.c_void_p
    native.perfscope_snapshot_take.restype = ctypes.c_int64
    content, status, number = np.frombuffer(data, np.uint8), ctypes.c_int64(), ctypes.c_int64()
    address = native.perfscope_snapshot_read(
        pointer(content), ctypes.c_size_t(len(content)), ctypes.byref(status), ctypes.byref(number)
    )
    del content  # So that the file can be closed.
    if status.value == _MEMORY:
        raise MemoryError
    if address is None:
        return None
    parts = ctypes.c_void_p(address)
    try:
        return _snapshot(native, parts, number.value)
    finally:
        native.perfscope_snapshot_free(parts)


def _snapshot(native: ctypes.CDLL, parts: ctypes.c_void_p, number: int) -> NativeSnapshot:
    def take(part: int, kind: npt.DTypeLike) -> Array:
        values = np.empty(native.perfscope_snapshot_take(parts, ctypes.c_size_t(part), None), kind)
        native.perfscope_snapshot_take(parts, ctypes.c_size_t(part), pointer(values))
        return values

    def texts(part: int) -> list[str]:
        joined, ends = take(part, np.uint8).tobytes(), take(part + 1, np.int64).tolist()
        return [joined[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]

    def history(part: int) -> NativeHistory:
        columns = {name: take(part + place, np.int64) for place, name in enumerate(_NUMBERS)}
        part += len(_NUMBERS)
        columns |= {name: take(part + place, np.int32) for place, name in enumerate(_CODES)}
        part += len(_CODES)
        return NativeHistory(columns=columns, words={"action": texts(part), "pool_id": texts(part + 2)})

    return NativeSnapshot(
        texts=texts(0),
        frames=take(2, np.uint8).view(np.int32).reshape(-1, 3),
        rows=take(3, np.uint8).view(np.int32).reshape(-1, 2),
        rest=take(4, np.uint8).tobytes(),
        histories=[history(part) for part in range(_FIRST, number, _PARTS)],
    )
