"""The history of one device's allocator as rows of ``memory``.

A history is a ring buffer: it ends at the snapshot, and what was before its first entry is gone. What was held then
follows from what is held at the end, less what was allocated and plus what was freed since: a block that is freed
without having been allocated, and one that is held at the end and was never heard of, were held before. Totals are
reckoned the same way, back from the end. Both are only said where the entries and the state agree with each other.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.readers.torch_memory.state import Stack, Stacks
from perfscope.model.errors import DataError
from perfscope.model.trace.columns import MISSING, Rows
from perfscope.model.trace.tables import HeldState, MemoryAction, MemoryCategory

# The entries of one device's history as columns, filled from raw pickled values a batch at a time.


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
    result = np.full(len(raw), MISSING, np.int64)
    short = table[:, 1:5].copy().view("<i4")[:, 0].astype(np.int64)
    result = np.where(opcode == _BININT, short, result)
    result = np.where((opcode == _BININT1) | (opcode == _BININT2), short & 0xFFFF, result)
    long = table[:, 2:10].copy().view("<i8")[:, 0]
    width = np.minimum(table[:, 1].astype(np.int64), 8) * 8
    room = np.where((width == 0) | (width == 64), 0, 64 - width)
    return np.where(opcode == _LONG1, (long << room) >> room, result)


ACTIONS = {
    "alloc": MemoryAction.ALLOCATE,
    "free": MemoryAction.FREE,
    "free_completed": MemoryAction.FREE,
    "free_requested": MemoryAction.FREE_REQUESTED,
    "segment_alloc": MemoryAction.RESERVE,
    "segment_map": MemoryAction.RESERVE,
    "segment_free": MemoryAction.RELEASE,
    "segment_unmap": MemoryAction.RELEASE,
    "oom": MemoryAction.OUT_OF_MEMORY,
}
"""torch's words. Segments that can grow are mapped and unmapped piece by piece."""
_LESS = (MemoryAction.FREE, MemoryAction.FREE_REQUESTED, MemoryAction.RELEASE)
LARGEST_BLOCK = 1 << 46
"""Bytes of one block at most: 64 TiB, so that a forged size does not overflow a total."""
_LAST_MICROSECOND = 2**63 // 1000 - 1


@dataclass(slots=True, kw_only=True)
class History:
    """Rows of one device, the blocks held before the first entry in front."""

    columns: dict[str, npt.NDArray[Any]]
    before: int
    """Rows that are blocks held before."""
    timed: bool
    unplaced: dict[str, int]
    repairs: dict[str, int]
    notes: list[str]


def history_of(entries: Entries, rows: Rows, reserved: int | None) -> History:
    """The rows of ``entries`` of one device.

    ``held``: its blocks at the snapshot; ``reserved``: bytes of its segments then, ``None`` if that says nothing.
    """
    history = History(columns={}, before=0, timed=True, unplaced={}, repairs={}, notes=[])
    columns = _placed(entries, history)
    times = columns.pop("time_us")
    columns["time_ns"] = _times(times, history)
    del times
    before, agree = _before(columns, rows)
    history.before = len(before["address"])
    if agree:
        columns["allocated_bytes"] = _allocated(columns, rows)
    else:
        history.notes.append(
            "the history and the blocks held at the end contradict each other: totals of allocated bytes are not known"
        )
    at_end = None if reserved is None else _reserved(columns, reserved)
    if at_end is not None and (not agree or (at_end >= columns["allocated_bytes"]).all()):
        columns["reserved_bytes"] = at_end
    elif reserved is not None:
        history.notes.append("segments are missing in the history: totals of reserved bytes are not known")
    history.columns = _joined(before, columns)
    return history


def _placed(entries: Entries, history: History) -> dict[str, npt.NDArray[Any]]:
    """Columns of the entries that are allocator events, sizes signed; ``time_us`` among them."""
    words = entries.words["action"]
    meaning = np.array([*(int(ACTIONS.get(word, MISSING)) for word in words), MISSING], np.int16)
    codes = entries.column("action")
    action = meaning[codes]
    size = entries.column("size")
    known, whole = action != MISSING, (size >= 0) & (size < LARGEST_BLOCK)
    for code, count in zip(*np.unique(codes[~known], return_counts=True), strict=True):
        word = words[code] if code != MISSING else "none"
        history.unplaced[f"entries of the action {word[:40]}"] = int(count)
    if (known & ~whole).any():
        history.unplaced["entries without a possible size"] = int((known & ~whole).sum())
    chosen: Any = slice(None) if (known & whole).all() else np.flatnonzero(known & whole)
    action, size = action[chosen].astype(np.uint8), size[chosen]
    columns: dict[str, npt.NDArray[Any]] = {
        "action": action,
        "bytes": np.where(np.isin(action, _LESS), -size, size),
        "address": np.maximum(entries.column("addr")[chosen], 0),
        "stream": entries.column("stream")[chosen],
        "frame": entries.column("frame")[chosen],
        "time_us": entries.column("time_us")[chosen],
    }
    _failures(columns, entries.column("device_free")[chosen], history)
    if entries.words["category"]:
        kinds = [_category(word) for word in entries.words["category"]]
        columns["category"] = np.array([*kinds, 0], np.uint8)[entries.column("category")[chosen]]
    if entries.words["pool_id"]:
        columns["pool"] = entries.column("pool_id")[chosen]
    return columns


def _failures(columns: Mapping[str, npt.NDArray[Any]], free: Int64, history: History) -> None:
    for row in np.flatnonzero(columns["action"] == MemoryAction.OUT_OF_MEMORY)[:3].tolist():
        left = f", {int(free[row]):,} bytes were free on the device" if free[row] >= 0 else ""
        history.notes.append(f"out of memory: {int(columns['bytes'][row]):,} bytes were asked for{left}")


def _category(word: str) -> int:
    return int(MemoryCategory.__members__.get(word.upper(), MemoryCategory.UNKNOWN))


def _times(times: Int64, history: History) -> Int64:
    """In ns, never backwards; numbers of the entries where the source has no times."""
    if not len(times) or (times < 0).any():
        history.timed = not len(times)
        return np.arange(len(times), dtype=np.int64)
    if int(times.max()) > _LAST_MICROSECOND:
        raise DataError("times beyond the year 2262: refused")
    sorted_times = np.maximum.accumulate(times)
    if back := int((sorted_times != times).sum()):
        history.repairs["times of the history that run backwards"] = back
    sorted_times *= 1000
    return sorted_times


def _before(columns: Mapping[str, npt.NDArray[Any]], rows: Rows) -> tuple[dict[str, npt.NDArray[Any]], bool]:
    """Blocks held before the first entry, and whether entries and state agree."""
    chosen = (columns["action"] == MemoryAction.ALLOCATE) | (columns["action"] == MemoryAction.FREE)
    events = np.flatnonzero(chosen).astype(np.int32)  # of a history of millions, every array counts
    address = columns["address"][events]
    order = np.argsort(address, kind="stable").astype(np.int32)
    events, address = events[order], address[order]
    del chosen, order
    frees = columns["action"][events] == MemoryAction.FREE
    first = np.ones(len(events), bool)
    first[1:] = address[1:] != address[:-1]
    last = np.ones(len(events), bool)
    last[:-1] = first[1:]
    size = columns["bytes"][events]
    agree = not (~first[1:] & (frees[1:] == frees[:-1])).any()
    agree = agree and not (~first[1:] & frees[1:] & (size[1:] != -size[:-1])).any()  # frees are negative

    in_use = np.flatnonzero((rows["state"] != HeldState.FREE) & (rows["address"] != 0))
    at_end = rows["address"][in_use].astype(np.int64)
    asked = np.where(rows["requested_bytes"] != MISSING, rows["requested_bytes"], rows["bytes"])[in_use]
    positions = np.searchsorted(address[last], at_end)
    heard = np.zeros(len(at_end), bool)
    inside = positions < int(last.sum())
    heard[inside] = address[last][positions[inside]] == at_end[inside]
    still = last & ~frees
    agree = agree and int(still.sum()) == int(heard.sum()) and len(np.unique(at_end)) == len(at_end)
    if agree and len(at_end):
        by_address = np.argsort(at_end[heard], kind="stable")
        agree = bool(
            (address[still] == at_end[heard][by_address]).all() and (size[still] == asked[heard][by_address]).all()
        )
    early, unheard = events[first & frees], in_use[~heard]
    freed = -columns["bytes"][early]
    return {
        "address": np.concatenate((columns["address"][early], at_end[~heard])),
        "bytes": np.concatenate((freed, asked[~heard])),
        "stream": np.concatenate((columns["stream"][early], np.full(len(unheard), MISSING))),
        "frame": np.concatenate((np.full(len(early), MISSING), rows["frame"][unheard])),
    }, agree


def _allocated(columns: Mapping[str, npt.NDArray[Any]], rows: Rows) -> Int64:
    """Bytes asked for in blocks that are not free yet, after each entry: (n,)."""
    in_use = rows["state"] != HeldState.FREE
    asked = np.where(rows["requested_bytes"] != MISSING, rows["requested_bytes"], rows["bytes"])
    return _back_from(int(asked[in_use].sum()), columns, (MemoryAction.ALLOCATE, MemoryAction.FREE))


def _reserved(columns: Mapping[str, npt.NDArray[Any]], at_end: int) -> Int64 | None:
    """Bytes of all segments after each entry, (n,); ``None`` where the entries cannot be right."""
    found = _back_from(at_end, columns, (MemoryAction.RESERVE, MemoryAction.RELEASE))
    return None if len(found) and int(found.min()) < 0 else found


def _back_from(at_end: int, columns: Mapping[str, npt.NDArray[Any]], kinds: tuple[MemoryAction, ...]) -> Int64:
    after = np.where(np.isin(columns["action"], kinds), columns["bytes"], 0)
    np.cumsum(after, out=after)
    after += at_end - (int(after[-1]) if len(after) else 0)
    return after


def _joined(before: dict[str, npt.NDArray[Any]], columns: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Both as one, the blocks held before at the time of the first entry."""
    size = len(before["address"])
    if not size:
        return columns
    whole = before | {
        "action": np.full(size, MemoryAction.HELD_BEFORE, np.uint8),
        "time_ns": np.full(size, columns["time_ns"][0] if len(columns["time_ns"]) else 0, np.int64),
    }
    if "allocated_bytes" in columns:
        whole["allocated_bytes"] = np.cumsum(before["bytes"])
    if "reserved_bytes" in columns:
        at_start = columns["reserved_bytes"][:1] - np.where(
            np.isin(columns["action"][:1], (MemoryAction.RESERVE, MemoryAction.RELEASE)), columns["bytes"][:1], 0
        )
        whole["reserved_bytes"] = np.repeat(at_start, size)
    joined = {}
    for name in list(columns):
        values = columns.pop(name)
        blank = 0 if name == "category" else MISSING
        joined[name] = np.concatenate((whole.get(name, np.full(size, blank)).astype(values.dtype), values))
    return joined
