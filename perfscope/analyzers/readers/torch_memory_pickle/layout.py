"""How entries of a history are pickled, learned from those read one opcode at a time.

An entry is ``EMPTY_DICT MEMOIZE MARK``, then a memoized key and a value for each field, then ``SETITEMS``. The keys
are the same objects in every entry, so each is the same few bytes; the pattern made of them matches whole entries and
nothing else, at the speed of the regular expression engine. Every opcode that it lets through is one that it names,
with the length that this opcode has, so a match is as good as a reading; whatever differs is left to the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from perfscope.analyzers.readers.torch_memory_pickle.entries import NUMBERS

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
        at, keys = 3, []
        while at < len(raw) - 1:
            field = _FIELD.match(raw, at, len(raw) - 1)
            if field is None:
                return
            keys.append(field[1])
            at = field.end()
        self._merge(keys, memo)

    def _merge(self, keys: list[bytes], memo: Sequence[Any]) -> None:
        if all(key in self.keys for key in keys):
            return
        merged, at = list(self.keys), 0
        for key in keys:
            if key in merged:
                if merged.index(key) < at:
                    return
                at = merged.index(key) + 1
            else:
                merged.insert(at, key)
                at += 1
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
    found = _TWO.fullmatch(raw)
    return None if found is None else (_number(found[1]), _number(found[2]))


def _number(raw: bytes) -> int:
    return int.from_bytes(raw[2:] if raw[:1] == b"\x8a" else raw[1:], "little", signed=raw[:1] in (b"J", b"\x8a"))
