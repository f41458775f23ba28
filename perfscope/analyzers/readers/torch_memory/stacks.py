"""Stacks of a snapshot as rows that share their callers."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfscope.model.errors import DataError
from perfscope.model.trace import TraceBuilder
from perfscope.model.trace.columns import MISSING, Rows
from perfscope.model.trace.tables import FRAMES

MOST_ROWS = 4_000_000
"""Rows at most: a program has some ten thousand different callers; each row takes about 150 bytes here."""

_NO_FILE = ("", "??", "none", "<unknown>")
"""What torch writes for a file it does not know (of C++ functions, and of events of its profiler)."""
_OF_PROFILER = "none"
_NAMED_BY_PROFILER = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<name>.+)", re.DOTALL)
"""A frame as torch's profiler names it; in a snapshot made of a profile the file and line stand in the name alone."""
_LARGEST_LINE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack that was read: the row of its innermost frame, ``MISSING`` if it has none."""

    row: int


class Stacks:
    """Frames seen so far; the same stack is the same row."""

    def __init__(self, strings: TraceBuilder) -> None:
        self._strings = strings
        self._file, self._line, self._name, self._parent = array("i"), array("i"), array("i"), array("i")
        self._frames: dict[tuple[object, object, object], tuple[int, int, int, int]] = {}
        self._rows: dict[int, int] = {}
        self._made: dict[int, Stack] = {MISSING: Stack(MISSING)}

    def of(self, frames: Sequence[Any]) -> Stack:
        """The stack of ``frames``, innermost first; what is no frame among them is left out.

        Of a frame ``filename``, ``line`` and ``name`` are read and nothing else. ``DataError``: too many.
        """
        row = MISSING
        for frame in reversed(frames):
            if type(frame) is dict:
                number, *parts = self._frame(frame)
                key = (row + 1) << 32 | number
                found = self._rows.get(key)
                if found is None:
                    found = self._rows[key] = len(self._parent)
                    if found >= MOST_ROWS:
                        raise DataError(f"more than {MOST_ROWS:,} different stack frames: refused")
                    for column, value in zip((self._file, self._line, self._name), parts, strict=True):
                        column.append(value)
                    self._parent.append(row)
                row = found
        made = self._made.get(row)
        if made is None:
            made = self._made[row] = Stack(row)
        return made

    def _frame(self, frame: dict[str, Any]) -> tuple[int, int, int, int]:
        """Number of the frame, codes of its file and name, its line between them."""
        file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
        file = file if type(file) is str else ""
        line = line if type(line) is int and 0 < line <= _LARGEST_LINE else MISSING
        name = name if type(name) is str else ""
        if file == _OF_PROFILER and (told := _NAMED_BY_PROFILER.fullmatch(name)) is not None:
            file, line, name = told["file"], int(told["line"]), told["name"]
        key = (file, line, name)
        found = self._frames.get(key)
        if found is None:
            code = MISSING if file in _NO_FILE else self._strings.code(file)
            found = self._frames[key] = (len(self._frames), code, line, self._strings.code(name))
        return found

    def rows(self) -> Rows:
        """The table ``frames``."""
        columns = {"file": self._file, "line": self._line, "name": self._name, "parent": self._parent}
        return Rows(FRAMES, {name: np.array(values, np.int32) for name, values in columns.items()})
