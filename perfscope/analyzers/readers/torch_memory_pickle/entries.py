"""The entries of one device's history as columns, filled from raw pickled values a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.readers.torch_memory_pickle.stacks import Stack, Stacks
from perfscope.analyzers.trace.columns import MISSING

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

    __slots__ = ("_chunks", "_numbers", "_stacks", "_words", "codes", "count", "frames", "memoized", "words")

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
        self._chunks: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in (*NUMBERS, *WORDS, "frame")}

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
        self._chunks[name] = [_shrunk(codes[chunk]) for chunk in self._chunks[name]]

    def _added(self, size: int) -> None:
        self.count += size
        if len(self.frames) >= _BATCH:
            self._decode()

    def _decode(self) -> None:
        for name, numbers in self._numbers.items():
            self._chunks[name].append(_shrunk(decode_numbers(numbers)))
            numbers.clear()
        for name, codes in self._words.items():
            self._chunks[name].append(_shrunk(np.array(codes, np.int32)))
            codes.clear()
        self._chunks["frame"].append(np.array(self.frames, np.int32))
        self.frames.clear()

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of all entries, (n,): int64 for numbers, int32 codes for words and ``frame``. Can be asked once."""
        if self.frames:
            self._decode()
        chunks = self._chunks.pop(name)
        found: npt.NDArray[Any] = np.empty(self.count, np.int64 if name in NUMBERS else np.int32)
        at = 0
        chunks.reverse()
        while chunks:
            chunk = chunks.pop()
            found[at : at + len(chunk)] = chunk
            at += len(chunk)
        return found


def _shrunk(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values; a column that holds one value throughout takes no room."""
    return np.broadcast_to(values[:1].copy(), values.shape) if len(values) and (values == values[0]).all() else values


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
    # Strings of a fixed width are padded with zeros behind their end, which is what the numbers need too.
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
