"""Debug annotations of events, by allow-list: an argument that the model has no column for is not read."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfscope.analyzers.readers.columns import ColumnBuffer, Columns
from perfscope.analyzers.readers.perfetto import vocabulary as words
from perfscope.analyzers.readers.perfetto.state import ARGUMENT_NAMES, TEXTS, Sequences, codes_of_fields
from perfscope.analyzers.readers.perfetto.wire import Buffer, Fields, Int, walk
from perfscope.model.trace import TABLES, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array

ROCPROF = ("agent", "queue", "corr_id", "dst_agent", "src_agent", "copy_bytes")
"""What rocprofv3 calls device, stream, correlation and bytes."""
OTHERS = (
    "source",
    words.OP_ARGUMENT,
    "correlation_id",
    *ROCPROF,
    words.DEVICE_ARGUMENT,
    words.HLO_DURATION,
    words.HLO_LAUNCH,
)

KNOWN = frozenset(
    {*OTHERS, words.THREAD_ARGUMENT, *(name for table in words.ARGUMENTS.values() for name in table.values())}
)

NUMBER, FLOAT, TEXT = 0, 1, 2
"""How a value was written."""

_NUMBERS = (2, 3, 4, 7)
"""Fields of ``DebugAnnotation`` that hold a bool, an unsigned, a signed number, a pointer."""


class Annotations:
    """Values of the known arguments: a row an argument of an event."""

    def __init__(self, strings: TraceBuilder, sequences: Sequences) -> None:
        self._strings, self._sequences = strings, sequences
        self._held = ColumnBuffer()
        self._by_name: dict[int, dict[str, Array]] | None = None

    def add(self, buffer: Buffer, messages: Fields, first: int, generation: Int, shown: str) -> None:
        """The annotations of events; ``first``: row of the first of these events, ``generation`` of each of them."""
        if not len(messages.row):
            return
        size = len(messages.row)
        fields = walk(buffer, messages.a, messages.b, shown)
        of = generation[messages.row]
        numbered = fields.of(1).numbers()
        name = np.full(size, MISSING, np.int64)
        name[numbered.row] = self._sequences.codes(ARGUMENT_NAMES, of[numbered.row], numbered.a)
        written = fields.of(10).messages()
        name[written.row] = codes_of_fields(self._strings, written, buffer)
        value, kind = np.zeros(size, np.int64), np.full(size, MISSING, np.int64)
        for field in _NUMBERS:
            result = fields.of(field).numbers()
            value[result.row], kind[result.row] = result.a, NUMBER
        result = fields.of(5).numbers()
        value[result.row], kind[result.row] = result.a, FLOAT
        result = fields.of(17).numbers()
        value[result.row], kind[result.row] = self._sequences.codes(TEXTS, of[result.row], result.a), TEXT
        # texts are decoded only for names that are read: others may hold anything
        result = fields.of(6).messages()
        result = result.take(self._known(name[result.row]))
        value[result.row], kind[result.row] = codes_of_fields(self._strings, result, buffer), TEXT
        chosen = (kind != MISSING) & self._known(name) & ~((kind == TEXT) & (value == MISSING))
        if chosen.any():
            self._held.append(
                {
                    "event": first + messages.row[chosen],
                    "name": name[chosen],
                    "value": value[chosen],
                    "kind": kind[chosen],
                }
            )

    def _known(self, names: Int) -> Array:
        used, inverse = np.unique(names, return_inverse=True)
        flags = np.array([one != MISSING and self._strings.strings[one] in KNOWN for one in used.tolist()], np.bool_)
        return flags[inverse] if len(used) else np.zeros(len(names), np.bool_)

    def columns(self, name: str) -> dict[str, Array]:
        """``event``, ``value`` and ``kind`` of every argument of that name, by event; of two the last one counts."""
        if self._by_name is None:
            self._by_name = {}
            if len(self._held):
                held = self._held.take()
                order = np.lexsort((held["event"], held["name"]))
                held = {key: values[order] for key, values in held.items()}
                edges = np.flatnonzero(np.diff(held["name"])) + 1
                for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(order)], strict=True):
                    part = {key: held[key][low:high] for key in ("event", "value", "kind")}
                    self._by_name[int(held["name"][low])] = part
        none = np.empty(0, np.int64)
        code = self._strings.code(name)
        return self._by_name.get(code, {"event": none, "value": none, "kind": none})

    def numbers(self, name: str, events: Int, *, blank: int = MISSING) -> Int:
        """The argument as a whole number, one an event of ``events`` (sorted or not); of text its digits."""
        result = self.columns(name)
        return self._at(result["event"], self._whole(result), events, blank)

    def _whole(self, found: dict[str, Array]) -> Int:
        value = found["value"].copy()
        for index in np.flatnonzero(found["kind"] == TEXT).tolist():
            digits = "".join(filter(str.isdigit, self._strings.strings[int(value[index])]))[:18]
            value[index] = int(digits) if digits else MISSING
        floats = found["kind"] == FLOAT
        real = value[floats].view(np.float64)
        fits = np.isfinite(real) & (np.abs(real) < 2**62)
        value[floats] = np.where(fits, real, MISSING).astype(np.int64)
        return value

    def floats(self, name: str, events: Int) -> Array:
        """The argument as a float, NaN where an event has none."""
        result = self.columns(name)
        value = np.where(result["kind"] == FLOAT, result["value"].view(np.float64), result["value"].astype(np.float64))
        value[result["kind"] == TEXT] = np.nan
        bits = self._at(result["event"], value.view(np.int64), events, int(np.array(np.nan).view(np.int64)))
        return bits.view(np.float64)

    def texts(self, name: str, events: Int) -> Int:
        """The argument as a code, ``MISSING`` where an event has none; a number as its digits."""
        result = self.columns(name)
        value = result["value"].copy()
        for index in np.flatnonzero(result["kind"] == NUMBER).tolist():
            value[index] = self._strings.code(str(int(value[index])))
        value[result["kind"] == FLOAT] = MISSING
        return self._at(result["event"], value, events, MISSING)

    def has(self, name: str, events: Int) -> Array:
        """Flags: the event has the argument."""
        result = self.columns(name)
        return np.asarray(self._at(result["event"], np.ones(len(result["event"]), np.int64), events, 0) == 1)

    @staticmethod
    def _at(held: Int, value: Int, events: Int, blank: int) -> Int:
        result = np.full(len(events), blank, np.int64)
        if len(held):
            positions = np.maximum(np.searchsorted(held, events, side="right") - 1, 0)
            same = held[positions] == events
            result[same] = value[positions[same]]
        return result


# Arguments of events as the declared columns of their tables.


_ALIASES = {
    ("calls", "correlation"): ("correlation_id", "corr_id"),
    ("kernels", "correlation"): ("correlation_id", "corr_id"),
    ("copies", "correlation"): ("correlation_id", "corr_id"),
    ("copies", "bytes"): ("copy_bytes",),
}
"""What others call a column, tried where ours is not there."""


class Arguments:
    """Reads the columns of ``vocabulary.ARGUMENTS``."""

    def __init__(self, annotations: Annotations, strings: TraceBuilder) -> None:
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
