"""Entries of a history taken many at a time, by the pattern of their layout."""

from __future__ import annotations

import mmap
from typing import Any

from perfscope.analyzers.readers.torch_memory_pickle.entries import NUMBERS, WORDS, Entries
from perfscope.analyzers.readers.torch_memory_pickle.layout import Layout, pair_of, place_of
from perfscope.analyzers.readers.torch_memory_pickle.stacks import Stack, Stacks
from perfscope.analyzers.trace.columns import MISSING
from perfscope.profiler.errors import DataError


class Forgotten:
    """What the memo keeps of an entry that was handed on."""


FORGOTTEN = Forgotten()

UNREAD = "(not kept)"
"""What the memo keeps of texts in fields that are not read: each entry may bring its own."""

MOST_KEPT = 32 << 20
"""Bytes of pickled stacks kept to know them again; beyond it they are learned anew."""
_WINDOW = 1 << 16
"""Bytes looked at together where the pickle is not in frames; a frame of pickle's is as long."""

_LIST, _TEXT = b"]\x8c"
_GETS = b"hj"
_POOL_NAMES = ("pool_id", "segment_pool_id")


class FastEntries:
    """Matches entries at the place where one begins."""

    def __init__(self, memo: list[Any], stacks: Stacks) -> None:
        self.layout = Layout()
        self._memo = memo
        self._stacks = stacks
        self._known: dict[bytes, Any] = {}
        self._kept = 0

    def matches(self, data: bytes | mmap.mmap, at: int, frame_end: int) -> bool:
        """Whether the pattern matches the entry that begins at ``at``."""
        entry = self.layout.entry
        return entry is not None and entry.match(data, at, _end(data, at, frame_end)) is not None

    def read(self, entries: Entries, data: bytes | mmap.mmap, at: int, frame_end: int) -> int:
        """Take the entries from ``at`` on that the pattern matches within the frame; where they end."""
        end = _end(data, at, frame_end)
        if self.layout.pattern is None:
            return at
        rows = self.layout.pattern.findall(data, at, end)
        rest = rows[-1][-1]
        if rest:
            rows.pop()
        self._add(entries, rows)
        return end - len(rest)

    def _add(self, entries: Entries, rows: list[tuple[bytes, ...]]) -> None:
        names = self.layout.names
        frames_at = names.index("frames") if "frames" in names else -1
        shared = [at for at, name in enumerate(names) if name not in NUMBERS]
        unread = {at for at in shared if names[at] not in (*WORDS, *_POOL_NAMES, "frames")}
        frames, known, keep = [], self._known, self._memo.append
        for row in rows:
            keep(FORGOTTEN)
            stack = MISSING
            for at in shared:
                raw = row[at]
                value = known.get(raw)
                if value is not None:
                    keep(value)
                elif not raw:
                    continue
                elif raw[0] in _GETS:
                    if at == frames_at:
                        stack = self._shared_stack(raw)
                    continue
                elif at in unread and raw[0] == _TEXT:
                    keep(UNREAD)
                else:
                    value = self._learn(raw)
                    if value is None:
                        continue
                    keep(value)
                if at == frames_at:
                    stack = value.row if type(value) is Stack else MISSING
            frames.append(stack)
        columns = list(zip(*rows, strict=True))
        numbers = {name: columns[at] for at, name in enumerate(names) if name in NUMBERS}
        words: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            word = "pool_id" if name in _POOL_NAMES else name
            if word in WORDS:
                words[word] = self._words(entries, word, columns[at])
        entries.add(numbers, words, frames)

    def _shared_stack(self, raw: bytes) -> int:
        value = self._get(raw)
        if type(value) is list:  # begun outside of the history
            value = self._stacks.of(value)
        return value.row if type(value) is Stack else MISSING

    def _get(self, raw: bytes) -> Any:
        place = place_of(raw)
        if place >= len(self._memo):
            raise DataError(f"nothing is kept at place {place:,}")
        return self._memo[place]

    def _learn(self, raw: bytes) -> Any:
        """What the memo keeps of a value that is no ``GET``; ``None``: nothing, numbers are not kept."""
        if raw[0] == _TEXT:
            value: Any = raw[2:-1].decode("utf-8", "replace")
        elif raw[0] == _LIST:
            value = self._stacks.of(self._list(raw))
        else:
            value = pair_of(raw)
            if value is None:
                return None
        self._kept += len(raw) + 100
        if self._kept > MOST_KEPT:
            self._known.clear()
            self._kept = 0
        self._known[raw] = value
        return value

    def _list(self, raw: bytes) -> list[Any]:
        """The items of a list of ``GET``."""
        found, at = [], 3 if raw[2:3] == b"(" else 2
        while at < len(raw) - 1:
            size = 2 if raw[at] == _GETS[0] else 5
            found.append(self._get(raw[at : at + size]))
            at += size
        return found

    def _words(self, entries: Entries, name: str, column: tuple[bytes, ...]) -> list[int]:
        codes: dict[bytes, int] = {}
        for raw in set(column):
            value = self._get(raw) if raw[:1] in (b"h", b"j") else self._known.get(raw) or (raw and self._learn(raw))
            codes[raw] = entries.word(name, value)
        return [codes[raw] for raw in column]


def _end(data: bytes | mmap.mmap, at: int, frame_end: int) -> int:
    """Where to look from ``at`` to at most: a frame opcode may stand between any two others."""
    return min(frame_end if frame_end > at else at + _WINDOW, at + 16 * _WINDOW, len(data))
