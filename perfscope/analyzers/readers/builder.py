"""Columns that grow chunk by chunk in place, so that no second copy of a file's events ever exists."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from perfscope.model.trace.columns import MISSING, Array

Columns = dict[str, Array]

_GROWTH = 1.25
"""A larger factor wastes memory (new room is touched when it is zeroed), a smaller one moves more often."""
_FIRST = 4096


class ColumnBuffer:
    """A table under construction: append column sets, then take the columns out once."""

    def __init__(self) -> None:
        self._buffers: Columns = {}
        self._rows = 0
        self._room = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, part: Columns) -> None:
        """Add rows. A column that this or an earlier part lacks is ``MISSING`` there (0 if unsigned)."""
        added = len(next(iter(part.values())))
        needed = self._rows + added
        if needed > self._room:
            self._room = max(int(self._room * _GROWTH), needed, _FIRST)
            for buffer in self._buffers.values():
                buffer.resize(self._room, refcheck=False)  # realloc: large blocks are remapped, not copied
        for name, values in part.items():
            if name not in self._buffers:
                self._buffers[name] = np.zeros(self._room, values.dtype)
                self._buffers[name][: self._rows] = blank_value(values.dtype)
            self._buffers[name][self._rows : needed] = values
        for name, buffer in self._buffers.items():
            if name not in part:
                buffer[self._rows : needed] = blank_value(buffer.dtype)
        self._rows = needed

    def take(self) -> Columns:
        """The columns, cut to their length; the table is empty afterwards."""
        columns, self._buffers = self._buffers, {}
        for buffer in columns.values():
            buffer.resize(self._rows, refcheck=False)
        self._rows = self._room = 0
        return columns


def blank_value(dtype: np.dtype[np.generic]) -> int:
    """What an integer column holds where nothing was recorded."""
    return MISSING if dtype.kind == "i" else 0


def join_columns(parts: list[Columns]) -> Columns:
    """Concatenate column sets, emptying ``parts`` as it goes; blanks as in ``Grown.append``."""
    if len(parts) == 1:
        return parts[0]
    names = list(dict.fromkeys(name for part in parts for name in part))
    sizes = [len(next(iter(part.values()), ())) for part in parts]
    joined: Columns = {}
    for name in names:
        dtype = next(part[name].dtype for part in parts if name in part)
        pieces = [
            part.pop(name) if name in part else np.full(size, blank_value(dtype), dtype)
            for part, size in zip(parts, sizes, strict=True)
        ]
        joined[name] = np.concatenate(pieces)
    return joined


# What all planes of a file share: the string pool, the threads, and what was left out.


@dataclass(slots=True)
class Pool:
    """Strings and threads by code, and tallies of what was read and where it went."""

    strings: list[str] = field(default_factory=list)
    threads: dict[tuple[str, str], int] = field(default_factory=dict)
    events: int = 0
    unplaced: Counter[str] = field(default_factory=Counter)
    """Events with no place in the model, by reason."""
    marks: Counter[str] = field(default_factory=Counter)
    """Events that are no spans of their own and were read as marks, or left out by name, by what they are."""
    _codes: dict[str, int] = field(default_factory=dict)

    def code(self, text: str) -> int:
        """Code of a string."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.strings)
            self.strings.append(text)
        return found

    def thread(self, process: str, name: str, line: int) -> int:
        """Row of a thread. Lines of one name are one thread only if their id is the same."""
        known = self.threads.get((process, name))
        if known is None or known == line:
            self.threads[process, name] = line
            return list(self.threads).index((process, name))
        return self.thread(process, f"{name}/{line & 0xFFFFFFFFFFFFFFFF}", line)
