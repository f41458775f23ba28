"""Debug annotations of events, by allow-list: an argument that the model has no column for is not read."""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.readers.kineto_json.grown import Grown
from perfscope.analyzers.readers.perfetto_trace import vocabulary as words
from perfscope.analyzers.readers.perfetto_trace.sequences import ARGUMENT_NAMES, TEXTS, Sequences, Strings
from perfscope.analyzers.readers.perfetto_trace.walk import Buffer, Fields, Int, walk
from perfscope.analyzers.trace.columns import MISSING, Array

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

    def __init__(self, strings: Strings, sequences: Sequences) -> None:
        self._strings, self._sequences = strings, sequences
        self._held = Grown()
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
        name[written.row] = self._strings.of_fields(written, buffer)
        value, kind = np.zeros(size, np.int64), np.full(size, MISSING, np.int64)
        for field in _NUMBERS:
            found = fields.of(field).numbers()
            value[found.row], kind[found.row] = found.a, NUMBER
        found = fields.of(5).numbers()
        value[found.row], kind[found.row] = found.a, FLOAT
        found = fields.of(17).numbers()
        value[found.row], kind[found.row] = self._sequences.codes(TEXTS, of[found.row], found.a), TEXT
        # texts are decoded only for names that are read: others may hold anything
        found = fields.of(6).messages()
        found = found.take(self._known(name[found.row]))
        value[found.row], kind[found.row] = self._strings.of_fields(found, buffer), TEXT
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
        used, places = np.unique(names, return_inverse=True)
        flags = np.array([one != MISSING and self._strings.texts[one] in KNOWN for one in used.tolist()], np.bool_)
        return flags[places] if len(used) else np.zeros(len(names), np.bool_)

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
        found = self.columns(name)
        return self._at(found["event"], self._whole(found), events, blank)

    def _whole(self, found: dict[str, Array]) -> Int:
        value = found["value"].copy()
        for place in np.flatnonzero(found["kind"] == TEXT).tolist():
            digits = "".join(filter(str.isdigit, self._strings.texts[int(value[place])]))[:18]
            value[place] = int(digits) if digits else MISSING
        floats = found["kind"] == FLOAT
        real = value[floats].view(np.float64)
        fits = np.isfinite(real) & (np.abs(real) < 2**62)
        value[floats] = np.where(fits, real, MISSING).astype(np.int64)
        return value

    def floats(self, name: str, events: Int) -> Array:
        """The argument as a float, NaN where an event has none."""
        found = self.columns(name)
        value = np.where(found["kind"] == FLOAT, found["value"].view(np.float64), found["value"].astype(np.float64))
        value[found["kind"] == TEXT] = np.nan
        bits = self._at(found["event"], value.view(np.int64), events, int(np.array(np.nan).view(np.int64)))
        return bits.view(np.float64)

    def texts(self, name: str, events: Int) -> Int:
        """The argument as a code, ``MISSING`` where an event has none; a number as its digits."""
        found = self.columns(name)
        value = found["value"].copy()
        for place in np.flatnonzero(found["kind"] == NUMBER).tolist():
            value[place] = self._strings.code(str(int(value[place])))
        value[found["kind"] == FLOAT] = MISSING
        return self._at(found["event"], value, events, MISSING)

    def has(self, name: str, events: Int) -> Array:
        """Flags: the event has the argument."""
        found = self.columns(name)
        return np.asarray(self._at(found["event"], np.ones(len(found["event"]), np.int64), events, 0) == 1)

    @staticmethod
    def _at(held: Int, value: Int, events: Int, blank: int) -> Int:
        result = np.full(len(events), blank, np.int64)
        if len(held):
            place = np.maximum(np.searchsorted(held, events, side="right") - 1, 0)
            same = held[place] == events
            result[same] = value[place[same]]
        return result
