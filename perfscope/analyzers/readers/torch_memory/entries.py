"""The entries of one device's history as columns, filled from raw pickled values a batch at a time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.readers.torch_memory.stacks import Stack, Stacks
from perfscope.model.trace.columns import MISSING

Int64 = npt.NDArray[np.int64]

NUMBERS = ("addr", "size", "stream", "time_us", "device_free")
"""Numbers of an entry that are kept."""
WORDS = ("action", "category", "pool_id")
"""Words of an entry that are kept, as codes."""

_BATCH = 16_384
"""Entries decoded at once: numpy's own cost per call no longer shows, and what waits stays small."""
_WIDTH = 10
"""Bytes of the longest number: opcode, length, and eight of its own."""
_BININT1, _BININT2, _BININT, _LONG1 = b"KMJ\x8a"


class Entries:
    """One device's history while it is read: what the pickle takes for a list."""

    __slots__ = ("_columns", "_numbers", "_stacks", "_words", "codes", "count", "frames", "memoized", "words")

    def __init__(self, stacks: Stacks) -> None:
        self.count = 0
        self.memoized: list[int] = []
        """Places in the memo of containers of entries that are still to be taken."""
        self.frames: list[int] = []
        self.words: dict[str, list[str]] = {name: [] for name in WORDS}
        """What the codes of each column of words mean."""
        self.codes: dict[str, dict[str, int]] = {name: {} for name in WORDS}
        self._stacks = stacks
        self._numbers: dict[str, list[bytes]] = {name: [] for name in NUMBERS}
        self._words: dict[str, list[int]] = {name: [] for name in WORDS}
        self._columns = {name: _Grown("q" if name in NUMBERS else "i") for name in (*NUMBERS, *WORDS, "frame")}

    def take(self, entries: Sequence[Any]) -> None:
        """Add decoded entries. What is no dictionary is an entry of which nothing is known."""
        for entry in entries:
            known: dict[str, Any] = entry if type(entry) is dict else {}
            for name, numbers in self._numbers.items():
                numbers.append(_raw(known.get(name)))
            for name, codes in self._words.items():
                codes.append(
                    self.word(name, known.get(name, known.get("segment_pool_id") if name == "pool_id" else None))
                )
            frames = known.get("frames")
            if type(frames) is list:
                self.frames.append(self._stacks.of(frames).row)
            else:
                self.frames.append(frames.row if type(frames) is Stack else MISSING)
        self._added(len(entries))

    def add(self, columns: Mapping[str, Sequence[bytes]], words: Mapping[str, list[int]], frames: list[int]) -> None:
        """Add entries by column: raw numbers, codes of words, rows of stacks. Columns left out are missing."""
        size = len(frames)
        for name, numbers in self._numbers.items():
            numbers.extend(columns[name] if name in columns else (b"",) * size)
        for name, codes in self._words.items():
            codes.extend(words[name] if name in words else (MISSING,) * size)
        self.frames.extend(frames)
        self._added(size)

    def word(self, column: str, value: object) -> int:
        """The code of a word in a column of words; ``MISSING`` if it is none."""
        if type(value) is tuple and all(type(part) is int for part in value):
            value = str(value)
        if type(value) is not str:
            return MISSING
        code = self.codes[column].get(value)
        if code is None:
            code = self.codes[column][value] = len(self.words[column])
            self.words[column].append(value)
        return code

    def recode(self, name: str, codes: npt.NDArray[np.int32]) -> None:
        """Replace the codes of a column of words; the last of ``codes`` stands for ``MISSING``."""
        if self.frames:
            self._decode()
        column = self._columns[name]
        self._columns[name] = _Grown("i")
        self._columns[name].extend(codes[column.values()])

    def _added(self, size: int) -> None:
        self.count += size
        if len(self.frames) >= _BATCH:
            self._decode()

    def _decode(self) -> None:
        for name, numbers in self._numbers.items():
            self._columns[name].extend(decode_numbers(numbers))
            numbers.clear()
        for name, codes in self._words.items():
            self._columns[name].extend(np.array(codes, np.int32))
            codes.clear()
        self._columns["frame"].extend(np.array(self.frames, np.int32))
        self.frames.clear()

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of all entries, (n,): int64 for numbers, int32 codes for words and ``frame``. Can be asked once."""
        if self.frames:
            self._decode()
        return self._columns.pop(name).values()


class _Grown:
    """A column that grows in place; one that holds one value throughout takes no room."""

    __slots__ = ("_code", "_count", "_held", "_value")

    def __init__(self, code: str) -> None:
        self._code = code
        self._count = 0
        self._value = MISSING
        self._held: array[int] | None = None

    def extend(self, values: npt.NDArray[Any]) -> None:
        if not len(values):
            return
        if self._held is None:
            first = int(values[0])
            if (not self._count or first == self._value) and (values == first).all():
                self._value = first
                self._count += len(values)
                return
            self._held = array(self._code, [self._value]) * self._count
        self._held.frombytes(values.tobytes())

    def values(self) -> npt.NDArray[Any]:
        """The column, (n,), read only where it is one value."""
        dtype = np.dtype(self._code)
        if self._held is None:
            return np.broadcast_to(np.array(self._value, dtype), (self._count,))
        return np.frombuffer(self._held, dtype)


def _raw(value: object) -> bytes:
    """A number as pickle would write it; nothing for what is no number of eight bytes."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        return b""
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def decode_numbers(raw: Sequence[bytes]) -> Int64:
    """Pickled integers (``BININT``, ``BININT1``, ``BININT2``, ``LONG1`` of up to 8 bytes) as an array, (n,).

    ``MISSING`` where there is nothing. Formats: Python's ``pickletools``.
    """
    if not raw:
        return np.empty(0, np.int64)
    # Strings of a fixed width are padded with zeros after their end, which is what the numbers need too.
    table = np.array(raw, f"S{_WIDTH}").view(np.uint8).reshape(len(raw), _WIDTH)
    opcode = table[:, 0]
    found = np.full(len(raw), MISSING, np.int64)
    short = table[:, 1:5].copy().view("<i4")[:, 0].astype(np.int64)
    found = np.where(opcode == _BININT, short, found)
    found = np.where((opcode == _BININT1) | (opcode == _BININT2), short & 0xFFFF, found)
    long = table[:, 2:10].copy().view("<i8")[:, 0]
    width = np.minimum(table[:, 1].astype(np.int64), 8) * 8
    room = np.where((width == 0) | (width == 64), 0, 64 - width)
    return np.where(opcode == _LONG1, (long << room) >> room, found)
