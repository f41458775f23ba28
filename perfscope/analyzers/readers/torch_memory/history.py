"""The history of one device's allocator as rows of ``memory``.

A history is a ring buffer: it ends at the snapshot, and events before its first entry are lost. The blocks held then
follow from the blocks held at the end, minus later allocations, plus later frees: a block that is freed without an
allocation, or held at the end without any entry, existed before. Totals are computed the same way, backwards from the
end. Both are reported only if the entries and the state agree.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.readers.torch_memory.state import Stacks
from perfscope.model.errors import DataError
from perfscope.model.trace.columns import MISSING, Rows
from perfscope.model.trace.tables import HeldState, MemoryAction

Int64 = npt.NDArray[np.int64]

NUMBERS = ("addr", "size", "stream", "time_us", "device_free")
"""Numbers of an entry that are kept."""
WORDS = ("action", "pool_id")
"""Words of an entry that are kept, as codes."""

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
"""Maximum bytes of one block, 64 TiB, so that a forged size does not overflow a total."""

_LAST_MICROSECOND = 2**63 // 1000 - 1


# The entries of one device's history as columns.


class Entries:
    """The history of one device as columns."""

    def __init__(self, columns: dict[str, npt.NDArray[Any]], words: dict[str, list[str]]) -> None:
        """``columns`` as in ``column``; ``words``: words of the codes of each of ``WORDS``."""
        self.count = len(columns["frame"])
        self.words = words
        self._columns = columns

    @classmethod
    def of(cls, entries: Sequence[Any], stacks: Stacks) -> Entries:
        """``entries`` as they were pickled; an entry that is not a dictionary has no known values."""
        known: list[dict[str, Any]] = [entry if type(entry) is dict else {} for entry in entries]
        columns: dict[str, npt.NDArray[Any]] = {
            name: _numbers([entry.get(name) for entry in known]) for name in NUMBERS
        }
        words: dict[str, list[str]] = {}
        for name in WORDS:
            values = (entry.get(name, entry.get("segment_pool_id") if name == "pool_id" else None) for entry in known)
            columns[name], words[name] = _codes(values)
        columns["frame"] = np.array([stacks.of(entry.get("frames")) for entry in known], np.int32)
        return cls(columns, words)

    def recode(self, name: str, codes: npt.NDArray[np.int32]) -> None:
        """Replace the codes of a column of words; the last of ``codes`` replaces ``MISSING``."""
        self._columns[name] = codes[self._columns[name]]

    def column(self, name: str) -> npt.NDArray[Any]:
        """Remove and return a column of all entries, (n,): int64 for numbers, int32 codes for words and ``frame``."""
        return self._columns.pop(name)


def _codes(values: Iterable[object]) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the codes of words, and of pairs of numbers as text, and the words; ``MISSING`` for anything else."""
    codes: dict[str, int] = {}
    column = array("i")
    for value in values:
        word = str(value) if type(value) is tuple else value
        column.append(codes.setdefault(word, len(codes)) if type(word) is str else MISSING)
    return np.frombuffer(column, np.int32) if column else np.empty(0, np.int32), list(codes)


def _numbers(values: list[Any]) -> Int64:
    """Return 64-bit integers; ``MISSING`` for anything else."""
    if set(map(type, values)) != {int} or min(values) < -(2**63) or max(values) >= 2**63:
        values = [value if type(value) is int and -(2**63) <= value < 2**63 else MISSING for value in values]
    return np.array(values, np.int64)


class History(Struct, kw_only=True):
    """Rows of one device, with the blocks held before the first entry in front."""

    columns: dict[str, npt.NDArray[Any]]
    before: int
    """Number of rows that are blocks held before."""
    unplaced: dict[str, int]
    repairs: dict[str, int]
    notes: list[str]
    timed: bool = True
    """Whether its entries have times; snapshots of torch 2.0 only have their order."""


def history_of(entries: Entries, rows: Rows, reserved: int) -> History:
    """Return the rows of ``entries`` of one device.

    ``rows``: its blocks at the snapshot; ``reserved``: bytes of its segments then.
    """
    history = History(columns={}, before=0, unplaced={}, repairs={}, notes=[])
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
            "the history and the blocks held at the end contradict each other: totals of allocated bytes are unknown"
        )
    at_end = _reserved(columns, reserved)
    if at_end is not None and (not agree or (at_end >= columns["allocated_bytes"]).all()):
        columns["reserved_bytes"] = at_end
    else:
        history.notes.append("segments are missing in the history: totals of reserved bytes are unknown")
    history.columns = _joined(before, columns)
    return history


def _placed(entries: Entries, history: History) -> dict[str, npt.NDArray[Any]]:
    """Return columns of the entries that are allocator events, with signed sizes and ``time_us``."""
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
    if entries.words["pool_id"]:
        columns["pool"] = entries.column("pool_id")[chosen]
    return columns


def _failures(columns: Mapping[str, npt.NDArray[Any]], free: Int64, history: History) -> None:
    for row in np.flatnonzero(columns["action"] == MemoryAction.OUT_OF_MEMORY)[:3].tolist():
        left = f", {int(free[row]):,} bytes were free on the device" if free[row] >= 0 else ""
        history.notes.append(f"out of memory: {int(columns['bytes'][row]):,} bytes were requested{left}")


def _times(times: Int64, history: History) -> Int64:
    """Return times in ns, never decreasing; numbers of events if an entry has no time."""
    if (times < 0).any():
        history.timed = False
        return np.arange(len(times))
    if int(times.max(initial=0)) > _LAST_MICROSECOND:
        raise DataError("times beyond the year 2262: refused")
    sorted_times = np.maximum.accumulate(times)
    if back := int((sorted_times != times).sum()):
        history.repairs["times of the history that run backwards"] = back
    sorted_times *= 1000
    return sorted_times


def _before(columns: Mapping[str, npt.NDArray[Any]], rows: Rows) -> tuple[dict[str, npt.NDArray[Any]], bool]:
    """Return blocks held before the first entry, and whether entries and state agree."""
    chosen = (columns["action"] == MemoryAction.ALLOCATE) | (columns["action"] == MemoryAction.FREE)
    events = np.flatnonzero(chosen).astype(np.int32)  # In a history of millions of entries, every array counts.
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
    agree = agree and not (~first[1:] & frees[1:] & (size[1:] != -size[:-1])).any()  # Sizes of frees are negative.

    in_use = np.flatnonzero((rows["state"] != HeldState.FREE) & (rows["address"] != 0))
    at_end = rows["address"][in_use].astype(np.int64)
    requested = np.where(rows["requested_bytes"] != MISSING, rows["requested_bytes"], rows["bytes"])[in_use]
    positions = np.searchsorted(address[last], at_end)
    heard = np.zeros(len(at_end), bool)
    inside = positions < int(last.sum())
    heard[inside] = address[last][positions[inside]] == at_end[inside]
    still = last & ~frees
    agree = agree and int(still.sum()) == int(heard.sum()) and len(np.unique(at_end)) == len(at_end)
    if agree and len(at_end):
        by_address = np.argsort(at_end[heard], kind="stable")
        agree = bool(
            (address[still] == at_end[heard][by_address]).all() and (size[still] == requested[heard][by_address]).all()
        )
    early, unheard = events[first & frees], in_use[~heard]
    freed = -columns["bytes"][early]
    return {
        "address": np.concatenate((columns["address"][early], at_end[~heard])),
        "bytes": np.concatenate((freed, requested[~heard])),
        "stream": np.concatenate((columns["stream"][early], np.full(len(unheard), MISSING))),
        "frame": np.concatenate((np.full(len(early), MISSING), rows["frame"][unheard])),
    }, agree


def _allocated(columns: Mapping[str, npt.NDArray[Any]], rows: Rows) -> Int64:
    """Return the requested bytes of blocks in use after each entry: (n,)."""
    in_use = rows["state"] != HeldState.FREE
    requested = np.where(rows["requested_bytes"] != MISSING, rows["requested_bytes"], rows["bytes"])
    return _back_from(int(requested[in_use].sum()), columns, (MemoryAction.ALLOCATE, MemoryAction.FREE))


def _reserved(columns: Mapping[str, npt.NDArray[Any]], at_end: int) -> Int64 | None:
    """Return the bytes of all segments after each entry, (n,); ``None`` if the entries are inconsistent."""
    found = _back_from(at_end, columns, (MemoryAction.RESERVE, MemoryAction.RELEASE))
    return None if len(found) and int(found.min()) < 0 else found


def _back_from(at_end: int, columns: Mapping[str, npt.NDArray[Any]], kinds: tuple[MemoryAction, ...]) -> Int64:
    after = np.where(np.isin(columns["action"], kinds), columns["bytes"], 0)
    np.cumsum(after, out=after)
    after += at_end - (int(after[-1]) if len(after) else 0)
    return after


def _joined(before: dict[str, npt.NDArray[Any]], columns: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return both, with the blocks held before at the time of the first entry."""
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
        joined[name] = np.concatenate((whole.get(name, np.full(size, MISSING)).astype(values.dtype), values))
    return joined
