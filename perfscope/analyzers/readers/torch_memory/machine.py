"""The pickle machine for memory snapshots: their history is not built, but read into columns as it comes.

Entries of the lists under ``device_traces`` are taken into columns (``Entries``) batch by batch, most of them by a
pattern that matches whole entries (``Layout``), the others opcode by opcode.
"""

from __future__ import annotations

import mmap
import pickle
import re
from collections.abc import Sequence
from typing import Any

from perfscope.analyzers.readers.pickle_machine import FORGOTTEN, PickleMachine
from perfscope.analyzers.readers.torch_memory.history import NUMBERS, WORDS, Entries
from perfscope.analyzers.readers.torch_memory.state import Stack, Stacks
from perfscope.model.errors import DataError
from perfscope.model.trace.columns import MISSING

# Entries of a history taken many at a time, by the pattern of their layout.


# How entries of a history are pickled, learned from those read one opcode at a time.
#
# An entry is ``EMPTY_DICT MEMOIZE MARK``, then a memoized key and a value for each field, then ``SETITEMS``. The keys
# are the same objects in every entry, so each is the same few bytes; the pattern made of them matches whole entries
# and
# nothing else, at the speed of the regular expression engine. Every opcode that it lets through is one that it names,
# with the length that this opcode has, so a match is as good as a reading; whatever differs is left to the machine.


_GET = rb"(?:h.|j....)"
_NUMBER = rb"(?:\x8a(?:%s)|K.|J....|M..)" % b"|".join(rb"\x%02x%s" % (n, b"." * n) for n in (6, 7, 5, 8, 4, 3, 2, 1, 0))
_LONGEST_TEXT = 63
_TEXT = rb"(?:\x8c(?:%s)\x94)" % b"|".join(rb"\x%02x%s" % (n, b"." * n) for n in range(_LONGEST_TEXT + 1))
_STACK = rb"(?:\]\x94(?:\((?:j....j....j....j....|h.h.h.h.|j....|h.)*+e|(?:h.|j....)a)?+)"
_PAIR = rb"(?:%s%s\x86\x94)" % (_NUMBER, _NUMBER)
_OTHER = rb"(?:[N\x88\x89]|G........)"
_ANY = b"|".join((_GET, _TEXT, _STACK, _PAIR, _NUMBER, _OTHER))

_BEGIN = rb"\}\x94\("
_FIELD = re.compile(rb"(?s:(%s)(%s))" % (_GET, _ANY))
_TWO = re.compile(rb"(?s:(%s)(%s)\x86\x94)" % (_NUMBER, _NUMBER))
MOST_TRIES = 50_000
"""Entries looked at for new fields: one a frame of pickle's (64 KiB) in a file of 3 GB, and no more of a forged one."""
_MOST_FIELDS = 32
"""Fields at most; torch 2.13 writes ten."""


class Layout:
    """The fields seen so far, in their order, and the pattern of an entry with any of them."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.names: list[str] = []
        self._tries = 0
        self.entry: re.Pattern[bytes] | None = None
        """Matches one entry."""
        self.pattern: re.Pattern[bytes] | None = None
        """Matches one entry, a group a field; or, in the last group, all that comes before an entry."""

    def learn(self, raw: bytes, memo: Sequence[Any]) -> None:
        """Take up the fields of the entry ``raw``, if it is one that the pattern can be made to match."""
        self._tries += 1
        if self._tries > MOST_TRIES or not raw.startswith(b"}\x94(") or not raw.endswith(b"u"):
            return
        index, keys = 3, []
        while index < len(raw) - 1:
            field = _FIELD.match(raw, index, len(raw) - 1)
            if field is None:
                return
            keys.append(field[1])
            index = field.end()
        self._merge(keys, memo)

    def _merge(self, keys: list[bytes], memo: Sequence[Any]) -> None:
        if all(key in self.keys for key in keys):
            return
        merged, index = list(self.keys), 0
        for key in keys:
            if key in merged:
                if merged.index(key) < index:
                    return
                index = merged.index(key) + 1
            else:
                merged.insert(index, key)
                index += 1
        names: list[Any] = [memo[place_of(key)] if place_of(key) < len(memo) else None for key in merged]
        if any(type(name) is not str for name in names) or len(set(names)) < len(names) or len(names) > _MOST_FIELDS:
            return
        self.keys, self.names = merged, names
        fields = b"".join(
            rb"(?:%s(%s))?+" % (re.escape(key), _NUMBER if name in NUMBERS else _ANY)
            for key, name in zip(merged, names, strict=True)
        )
        self.entry = re.compile(rb"(?s:%s%su)" % (_BEGIN, fields))
        self.pattern = re.compile(rb"(?s:%s%su|(.+))" % (_BEGIN, fields))


def place_of(get: bytes) -> int:
    """The place in the memo that ``BINGET`` or ``LONG_BINGET`` asks for."""
    return int.from_bytes(get[1:], "little")


def pair_of(raw: bytes) -> tuple[int, int] | None:
    """The two numbers of a pickled pair; ``None`` for any other value."""
    match = _TWO.fullmatch(raw)
    return None if match is None else (_number(match[1]), _number(match[2]))


def _number(raw: bytes) -> int:
    return int.from_bytes(raw[2:] if raw[:1] == b"\x8a" else raw[1:], "little", signed=raw[:1] in (b"J", b"\x8a"))


UNREAD = "(not kept)"
"""What the memo keeps of texts in fields that are not read: each entry may bring its own."""

MOST_KEPT = 32 << 20
"""Bytes of pickled stacks kept to know them again; beyond it they are learned again."""
_WINDOW = 1 << 16
"""Bytes looked at together where the pickle is not in frames; a frame of pickle's is as long."""

_LIST, _FAST_TEXT = b"]\x8c"
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

    def matches(self, data: bytes | mmap.mmap, index: int, frame_end: int) -> bool:
        """Whether the pattern matches the entry that begins at ``at``."""
        entry = self.layout.entry
        return entry is not None and entry.match(data, index, _end(data, index, frame_end)) is not None

    def read(self, entries: Entries, data: bytes | mmap.mmap, index: int, frame_end: int) -> int:
        """Take the entries from ``at`` on that the pattern matches within the frame; where they end."""
        end = _end(data, index, frame_end)
        if self.layout.pattern is None:
            return index
        rows = self.layout.pattern.findall(data, index, end)
        rest = rows[-1][-1]
        if rest:
            rows.pop()
        self._add(entries, rows)
        return end - len(rest)

    def _add(self, entries: Entries, rows: list[tuple[bytes, ...]]) -> None:
        names = self.layout.names
        frames_at = names.index("frames") if "frames" in names else -1
        shared = [index for index, name in enumerate(names) if name not in NUMBERS]
        unread = {index for index in shared if names[index] not in (*WORDS, *_POOL_NAMES, "frames")}
        frames, known, keep = [], self._known, self._memo.append
        for row in rows:
            keep(FORGOTTEN)
            stack = MISSING
            for index in shared:
                raw = row[index]
                value = known.get(raw)
                if value is not None:
                    keep(value)
                elif not raw:
                    continue
                elif raw[0] in _GETS:
                    if index == frames_at:
                        stack = self._shared_stack(raw)
                    continue
                elif index in unread and raw[0] == _FAST_TEXT:
                    keep(UNREAD)
                else:
                    value = self._learn(raw)
                    if value is None:
                        continue
                    keep(value)
                if index == frames_at:
                    stack = value.row if type(value) is Stack else MISSING
            frames.append(stack)
        columns = list(zip(*rows, strict=True))
        numbers = {name: columns[index] for index, name in enumerate(names) if name in NUMBERS}
        words: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            word = "pool_id" if name in _POOL_NAMES else name
            if word in WORDS:
                words[word] = self._words(entries, word, columns[index])
        entries.add(numbers, words, frames)

    def _shared_stack(self, raw: bytes) -> int:
        value = self._get(raw)
        if type(value) is list:  # begun outside of the history
            value = self._stacks.of(value)
        return value.row if type(value) is Stack else MISSING

    def _get(self, raw: bytes) -> Any:
        index = place_of(raw)
        if index >= len(self._memo):
            raise DataError(f"nothing is kept at place {index:,}")
        return self._memo[index]

    def _learn(self, raw: bytes) -> Any:
        """What the memo keeps of a value that is no ``GET``; ``None``: nothing, numbers are not kept."""
        if raw[0] == _FAST_TEXT:
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
        result, index = [], 3 if raw[2:3] == b"(" else 2
        while index < len(raw) - 1:
            size = 2 if raw[index] == _GETS[0] else 5
            result.append(self._get(raw[index : index + size]))
            index += size
        return result

    def _words(self, entries: Entries, name: str, column: tuple[bytes, ...]) -> list[int]:
        codes: dict[bytes, int] = {}
        for raw in set(column):
            value = self._get(raw) if raw[:1] in (b"h", b"j") else self._known.get(raw) or (raw and self._learn(raw))
            codes[raw] = entries.word(name, value)
        return [codes[raw] for raw in column]


def _end(data: bytes | mmap.mmap, index: int, frame_end: int) -> int:
    """Where to look from ``at`` to at most: a frame opcode may stand between any two others."""
    return min(frame_end if frame_end > index else index + _WINDOW, index + 16 * _WINDOW, len(data))


TRACES = "device_traces"

_LONGEST_ENTRY = 1 << 16
"""Bytes of an entry whose layout is worth knowing."""


class Traces(list[Any]):
    """The list under ``device_traces``: of ``Entries``."""


class Machine(PickleMachine):
    """Reads one snapshot; the lists under ``device_traces`` are ``Entries``."""

    def __init__(self, data: bytes | mmap.mmap, stacks: Stacks, *, fast: bool = True) -> None:
        """``fast``: match whole entries where their layout is known."""
        super().__init__(data, "memory snapshot")
        self.stacks = stacks
        self._fast = FastEntries(self.memo, stacks) if fast else None
        self._began = -1
        """Offset of the entry that is being read opcode by opcode."""
        self._entry: dict[Any, Any] = {}

    def _memoize(self) -> None:
        kept = self.stack[-1]
        of_entry = type(kept) is list or (type(kept) is dict and self._began >= 0 and kept is self._entry)
        if of_entry and (entries := self._history()) is not None:
            entries.memoized.append(len(self.memo))
        self.memo.append(kept)

    def _empty_list(self) -> None:
        made: list[Any] | Entries = []
        if self.stack and self.stack[-1] == TRACES and type(self.stack[-1]) is str and len(self.marks) <= 1:
            made = Traces()
        elif type(self._around()) is Traces:
            made = Entries(self.stacks)
        self._containers += 1
        self.stack.append(made)

    def _around(self) -> Any:
        """The list that what comes next belongs to, as far as it is one of the history."""
        if self.stack and type(self.stack[-1]) in (Traces, Entries):
            if type(self.stack[-1]) is Traces or not self.marks or type(self.marks[-1][-1]) is not Traces:
                return self.stack[-1]
            # An empty history, and another after it; or one of a single entry, which only a dictionary can be.
            return self.stack[-1] if self.data[self.at - 1 : self.at] == pickle.EMPTY_DICT else self.marks[-1][-1]
        return self.marks[-1][-1] if self.marks and self.marks[-1] else None

    def _history(self) -> Entries | None:
        """The history that is being read, or ``None``."""
        for level in (self.stack, *reversed(self.marks)):
            if level and type(level[-1]) is Entries:
                return level[-1]
        return None

    def _empty_dict(self) -> None:
        entries = self._around()
        if type(entries) is Entries:
            marked = not self.stack or self.stack[-1] is not entries
            if marked and self._fast is not None:
                self._learn()
                if self._fast.matches(self.data, self.at - 1, self._frame_end):
                    self._take(entries, self.stack)
                    self.stack.clear()
                    self.at = self._fast.read(entries, self.data, self.at - 1, self._frame_end)
                    return
            super()._empty_dict()
            self._began = self.at - 1
            self._entry = self.stack[-1]
        else:
            super()._empty_dict()

    def _extend(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is Entries:
            self._take(into, items)
        else:
            super()._extend(items)

    def _take(self, entries: Entries, items: list[Any]) -> None:
        """Add entries to the history, and keep of them only what later ones share: their stacks."""
        self._learn()
        entries.take(items)
        self._containers -= len(entries.memoized)
        for index in entries.memoized:
            kept = self.memo[index]
            self.memo[index] = self.stacks.of(kept) if type(kept) is list else FORGOTTEN
        entries.memoized.clear()

    def _learn(self) -> None:
        """Learn the layout of the entry that was read last, which ends here."""
        if self._fast is not None and self._began >= 0:
            self._fast.layout.learn(
                bytes(self.data[self._began : min(self.at - 1, self._began + _LONGEST_ENTRY)]), self.memo
            )
        self._began = -1
