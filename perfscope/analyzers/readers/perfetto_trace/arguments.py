"""Arguments of events as the declared columns of their tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfscope.analyzers.readers.kineto_json.grown import Columns
from perfscope.analyzers.readers.perfetto_trace import vocabulary as words
from perfscope.analyzers.readers.perfetto_trace.annotations import Annotations
from perfscope.analyzers.readers.perfetto_trace.sequences import Strings
from perfscope.analyzers.readers.perfetto_trace.walk import Int
from perfscope.analyzers.trace import TABLES
from perfscope.analyzers.trace.columns import MISSING, Array

_ALIASES = {
    ("calls", "correlation"): ("correlation_id", "corr_id"),
    ("kernels", "correlation"): ("correlation_id", "corr_id"),
    ("copies", "correlation"): ("correlation_id", "corr_id"),
    ("copies", "bytes"): ("copy_bytes",),
}
"""What others call a column, tried where ours is not there."""


class Arguments:
    """Reads the columns of ``vocabulary.ARGUMENTS``."""

    def __init__(self, annotations: Annotations, strings: Strings) -> None:
        self._annotations, self._strings = annotations, strings

    def of(self, table: str, events: Int) -> Columns:
        """The columns of a table that are arguments; ``events``: their rows, shape (n,)."""
        return {column: self.column(table, column, events) for column in words.ARGUMENTS[table]}

    def column(self, table: str, column: str, events: Int) -> Array:
        """One column, ``MISSING`` (NaN) where an event has no such argument."""
        name = words.ARGUMENTS[table][column]
        declared = TABLES[table].column(column)
        if (table, column) in words.ENUMS:
            return self._enumerated(words.ENUMS[table, column], self._annotations.texts(name, events))
        if declared.text:
            return self._annotations.texts(name, events)
        if np.dtype(declared.dtype).kind == "f":
            return self._annotations.floats(name, events)
        blank = MISSING if declared.nullable else 0
        found = self._annotations.numbers(name, events, blank=blank)
        for other in _ALIASES.get((table, column), ()):
            found = np.where(found == MISSING, self._annotations.numbers(other, events), found)
        if declared.dtype == "int32":
            fits = (found >= -(2**31)) & (found < 2**31)
            found = np.where(fits, found, blank)
        return found

    def _enumerated(self, named: Any, codes: Int) -> Int:
        known = {self._strings.code(one.name.lower()): int(one) for one in named}
        used, inverse = np.unique(codes, return_inverse=True)
        found = np.array([known.get(code, MISSING) for code in used.tolist()], np.int64)
        return found[inverse] if len(used) else np.empty(0, np.int64)

    def has(self, name: str, events: Int) -> Array:
        """Flags: the event has the argument."""
        return self._annotations.has(name, events)

    def numbers(self, name: str, events: Int) -> Int:
        """An argument as a whole number."""
        return self._annotations.numbers(name, events)

    def ordinal(self, events: Int) -> Int:
        """Number of the device of each event."""
        found = self._annotations.numbers(words.DEVICE_ARGUMENT, events)
        for other in ("agent", "dst_agent"):
            found = np.where(found == MISSING, self._annotations.numbers(other, events), found)
        return np.maximum(found, 0)

    def stream(self, events: Int, tracks: Int) -> Int:
        """Stream or queue of each event; the number of its track where none is told."""
        name = words.ARGUMENTS["kernels"]["stream"]
        found = self._annotations.numbers(name, events)
        told = self._annotations.has(name, events)
        queue = self._annotations.has("queue", events)
        found = np.where(told, found, np.where(queue, self._annotations.numbers("queue", events), MISSING))
        _, order = np.unique(tracks, return_inverse=True)
        return np.where(told | queue, found, order)
