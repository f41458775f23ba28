"""Debug annotations of events, by allow-list: arguments without a column of the model are not read."""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.readers import Columns
from perfscope.model.documents import perfetto_vocabulary as words
from perfscope.model.trace import TABLES, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array
from perfscope.plugins.perfetto_files.state import Int, signed

ROCPROF = ("agent", "queue", "corr_id", "dst_agent", "src_agent", "copy_bytes")
"""Names in rocprofv3 of device, stream, correlation and bytes."""
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

_ALIASES = {
    ("calls", "correlation"): ("correlation_id", "corr_id"),
    ("kernels", "correlation"): ("correlation_id", "corr_id"),
    ("copies", "correlation"): ("correlation_id", "corr_id"),
    ("copies", "bytes"): ("copy_bytes",),
}
"""Names of a column in other tools, used if ours is absent."""

NUMBER, FLOAT, TEXT = 0, 1, 2
"""Type of a value as written."""


_KINDS = {
    "bool_value": NUMBER,
    "uint_value": NUMBER,
    "int_value": NUMBER,
    "pointer_value": NUMBER,
    "double_value": FLOAT,
    "string_value": TEXT,
    "string_value_iid": TEXT,
}


class _Argument(Struct):
    """The values of one argument, a row per event, in the order of the events."""

    events: array[int] = field(default_factory=lambda: array("q"))
    values: array[int] = field(default_factory=lambda: array("q"))
    """Numbers, the bits of floats, the codes of texts."""
    kinds: array[int] = field(default_factory=lambda: array("B"))


class Annotations:
    """Values of the known arguments by name."""

    def __init__(self, strings: TraceBuilder) -> None:
        self._strings = strings
        self._by_name: defaultdict[str, _Argument] = defaultdict(_Argument)

    def add(self, name: str, event: int, annotation: Any, texts: Mapping[int, bytes]) -> None:
        """Add an annotation of an event; ``texts``: interned texts of its sequence."""
        member = annotation.WhichOneof("value")
        if member is None:
            return
        value, kind = getattr(annotation, member), _KINDS[member]
        if member == "string_value_iid":
            value = texts.get(value)
            if value is None:
                return
        if kind == FLOAT:
            value = struct.unpack("<q", struct.pack("<d", value))[0]
        elif kind == TEXT:
            value = self._strings.code(value.decode("utf-8", "replace"))
        argument = self._by_name[name]
        argument.events.append(event)
        argument.values.append(signed(value))
        argument.kinds.append(kind)

    def columns(self, name: str) -> dict[str, Array]:
        """Return ``event``, ``value`` and ``kind`` of every argument of that name, by event; the last of two counts."""
        argument = self._by_name[name]
        return {
            "event": np.asarray(argument.events),
            "value": np.asarray(argument.values),
            "kind": np.asarray(argument.kinds),
        }

    def numbers(self, name: str, events: Int, *, blank: int = MISSING) -> Int:
        """Return the argument as an integer, one per event of ``events`` (in any order); a text is parsed."""
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
        """Return the argument as a float, NaN for an event without it."""
        result = self.columns(name)
        value = np.where(result["kind"] == FLOAT, result["value"].view(np.float64), result["value"].astype(np.float64))
        value[result["kind"] == TEXT] = np.nan
        bits = self._at(result["event"], value.view(np.int64), events, int(np.array(np.nan).view(np.int64)))
        return bits.view(np.float64)

    def texts(self, name: str, events: Int) -> Int:
        """Return the argument as a code, ``MISSING`` for an event without it; a number as its digits."""
        result = self.columns(name)
        value = result["value"].copy()
        for index in np.flatnonzero(result["kind"] == NUMBER).tolist():
            value[index] = self._strings.code(str(int(value[index])))
        value[result["kind"] == FLOAT] = MISSING
        return self._at(result["event"], value, events, MISSING)

    def has(self, name: str, events: Int) -> Array:
        """Return flags of the events that have the argument."""
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

    def of(self, table: str, events: Int) -> Columns:
        """Return the columns of a table that are arguments; ``events``: their rows, shape (n,)."""
        return {column: self.column(table, column, events) for column in words.ARGUMENTS[table]}

    def column(self, table: str, column: str, events: Int) -> Array:
        """Return one column, ``MISSING`` (NaN) for an event without the argument."""
        name = words.ARGUMENTS[table][column]
        declared = TABLES[table].column(column)
        if (table, column) in words.ENUMS:
            return self._enumerated(words.ENUMS[table, column], self.texts(name, events))
        if declared.text:
            return self.texts(name, events)
        if np.dtype(declared.dtype).kind == "f":
            return self.floats(name, events)
        blank = MISSING if declared.nullable else 0
        found = self.numbers(name, events, blank=blank)
        for other in _ALIASES.get((table, column), ()):
            found = np.where(found == MISSING, self.numbers(other, events), found)
        if declared.dtype == "int32":
            fits = (found >= -(2**31)) & (found < 2**31)
            found = np.where(fits, found, blank)
        return found

    def _enumerated(self, named: Any, codes: Int) -> Int:
        known = {self._strings.code(one.name.lower()): int(one) for one in named}
        used, inverse = np.unique(codes, return_inverse=True)
        found = np.array([known.get(code, MISSING) for code in used.tolist()], np.int64)
        return found[inverse] if len(used) else np.empty(0, np.int64)

    def ordinal(self, events: Int) -> Int:
        """Return the number of each event's device."""
        found = self.numbers(words.DEVICE_ARGUMENT, events)
        for other in ("agent", "dst_agent"):
            found = np.where(found == MISSING, self.numbers(other, events), found)
        return np.maximum(found, 0)

    def stream(self, events: Int, tracks: Int) -> Int:
        """Return the stream or queue of each event; the number of its track if unknown."""
        name = words.ARGUMENTS["kernels"]["stream"]
        found = self.numbers(name, events)
        recorded = self.has(name, events)
        queue = self.has("queue", events)
        found = np.where(recorded, found, np.where(queue, self.numbers("queue", events), MISSING))
        _, order = np.unique(tracks, return_inverse=True)
        return np.where(recorded | queue, found, order)
