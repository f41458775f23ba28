"""What packets leave unsaid because their sequence has said it before: strings, the default clock and track.

Strings are interned by a sequence and forgotten when its state is cleared: a *generation* is what lies between two
clearings of one sequence, and numbers mean something within it only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfscope.analyzers.readers.perfetto_trace.walk import Buffer, Fields, Int, walk
from perfscope.analyzers.trace.columns import MISSING

CATEGORIES, NAMES, ARGUMENT_NAMES, GPU_STAGES, TEXTS = 1, 2, 3, 24, 29
"""Fields of ``InternedData`` that are read; the number is also the kind of string."""
_KINDS = (CATEGORIES, NAMES, ARGUMENT_NAMES, GPU_STAGES, TEXTS)

_CLEARED = 1


@dataclass(slots=True)
class Strings:
    """The strings of a file by code."""

    texts: list[str] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)

    def code(self, text: str) -> int:
        """Code of a string."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return found

    def of_fields(self, fields: Fields, buffer: Buffer) -> Int:
        """Codes of fields that hold text."""
        known: dict[bytes, int] = {}
        codes = np.empty(len(fields.a), np.int64)
        for place, (start, end) in enumerate(zip(fields.a.tolist(), fields.b.tolist(), strict=True)):
            raw = buffer.data[start:end]
            code = known.get(raw)
            if code is None:
                code = known[raw] = self.code(raw.decode("utf-8", "replace"))
            codes[place] = code
        return codes


@dataclass(slots=True)
class Sequences:
    """The state of every sequence."""

    strings: Strings
    defaults: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Generation -> (default clock or 0, default track or 0)."""
    _current: dict[int, int] = field(default_factory=dict)
    _count: int = 0
    _interned: dict[int, dict[int, dict[int, int]]] = field(default_factory=dict)
    """Kind -> generation -> number -> code."""

    def generations(self, sequence: Int, flags: Int, cleared: Int) -> Int:
        """Generation of each packet; packets in their order, shapes (n,)."""
        begins = ((flags & _CLEARED) != 0) | (cleared > 0)
        found = np.empty(len(sequence), np.int64)
        for one in np.unique(sequence).tolist():
            mine = np.flatnonzero(sequence == one)
            if one not in self._current:
                self._current[one] = self._new()
            fresh = np.cumsum(begins[mine])
            ids = np.array([self._current[one], *(self._new() for _ in range(int(fresh[-1])))], np.int64)
            found[mine] = ids[fresh]
            self._current[one] = int(ids[-1])
        return found

    def _new(self) -> int:
        self._count += 1
        return self._count

    def intern(self, buffer: Buffer, messages: Fields, generation: Int, shown: str) -> None:
        """Take in the ``InternedData`` of packets; ``generation`` of each of ``messages``."""
        held = walk(buffer, messages.a, messages.b, shown).messages()
        held = held.take(np.isin(held.number, _KINDS))
        inner = walk(buffer, held.a, held.b, shown)
        numbers = inner.of(1).numbers().column(len(held.a), 0)
        named = inner.of(2).messages()
        codes = np.full(len(held.a), self.strings.code(""), np.int64)
        codes[named.row] = self.strings.of_fields(named, buffer)
        columns = (held.number, generation[held.row], numbers, codes)
        for kind, of, number, code in zip(*(column.tolist() for column in columns), strict=True):
            self._interned.setdefault(kind, {}).setdefault(of, {})[number] = code

    def codes(self, kind: int, generation: Int, number: Int) -> Int:
        """Codes of interned strings; ``MISSING`` for a number that the generation never defined."""
        found = np.full(len(number), MISSING, np.int64)
        tables = self._interned.get(kind, {})
        for of in np.unique(generation).tolist():
            table = tables.get(of)
            if table is None:
                continue
            mine = np.flatnonzero(generation == of)
            used, places = np.unique(number[mine], return_inverse=True)
            found[mine] = np.array([table.get(one, MISSING) for one in used.tolist()], np.int64)[places]
        return found
