"""Input of formats with a timeline: sanitised texts, tracks, and events as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.model.documents import perfetto_vocabulary as words
from perfscope.model.trace import Trace
from perfscope.model.trace.columns import MISSING, Array, Column, Rows
from perfscope.model.untrusted_text import TEXT_LIMIT, clean, shorten


class Texts:
    """Strings by code: the codes of the trace's text columns are kept, the export's own follow."""

    def __init__(self, trace: Trace | None = None) -> None:
        self._texts = [] if trace is None else list(trace.strings)
        self._codes: dict[str, int] = {}
        self._shown: dict[int, str] = {}

    def __len__(self) -> int:
        """Number of codes."""
        return len(self._texts)

    def code(self, text: str) -> int:
        """Return the code of a text of the export."""
        result = self._codes.get(text)
        if result is None:
            result = self._codes[text] = len(self._texts)
            self._texts.append(text)
        return result

    def shown(self, code: int) -> str:
        """Return the text without secrets and control characters, cut to a maximal length."""
        result = self._shown.get(code)
        if result is None:
            result = self._shown[code] = fit(self._texts[code])
        return result


def fit(text: str) -> str:
    """Clean an untrusted text for a file that may be shared."""
    return shorten(clean(text), TEXT_LIMIT)


Kind = Literal["process", "thread", "plain", "counter"]

_LARGEST_ID = 2**31 - 1
"""Process and thread ids are 32-bit numbers in both formats."""
_FIRST_MADE = 1 << 30
"""First id for devices, streams and clashes: above the ids that systems assign (2^22 on Linux)."""


class Track(Struct, frozen=True, kw_only=True):
    """A track. ``uuid`` is its number in the file; ``pid`` and ``tid`` are unique in it."""

    uuid: int
    kind: Kind
    name: str
    parent: int = 0
    pid: int = 0
    tid: int = 0
    unit: str = ""
    """Unit of a counter: ``B``, or the source's own."""


class Tracks:
    """Creates tracks whose ids are unique, also if ranks of several hosts are merged."""

    def __init__(self) -> None:
        self.made: list[Track] = []
        self._pids: set[int] = set()
        self._tids: set[int] = set()
        self._next_id = _FIRST_MADE
        self._described: set[int] = set()

    def process(self, name: str, wanted: str = "") -> Track:
        """The track of a process or device; ``wanted``: the id it gets if that is a number and unused."""
        return self._add(Track(uuid=self._uuid(), kind="process", name=name, pid=self._id(wanted, self._pids)))

    def thread(self, process: Track, name: str, wanted: str = "") -> Track:
        """The track of a thread or stream of ``process``."""
        tid = self._id(wanted, self._tids)
        return self._add(
            Track(uuid=self._uuid(), kind="thread", name=name, parent=process.uuid, pid=process.pid, tid=tid)
        )

    def plain(self, parent: Track, name: str) -> Track:
        """A track below another: a lane, or a separate row in a process."""
        made = Track(
            uuid=self._uuid(), kind="plain", name=name, parent=parent.uuid, pid=parent.pid, tid=self._made_id()
        )
        return self._add(made)

    def counter(self, parent: Track, name: str, unit: str = "") -> Track:
        """The track of a counter."""
        return self._add(
            Track(uuid=self._uuid(), kind="counter", name=name, parent=parent.uuid, pid=parent.pid, unit=unit)
        )

    def is_new(self, track: Track) -> bool:
        """Return True on the first call for a track: the caller must then describe the track."""
        if track.uuid in self._described:
            return False
        self._described.add(track.uuid)
        return True

    def top(self, uuid: int) -> Track:
        """The topmost track above a track, which is its process."""
        while self[uuid].parent:
            uuid = self[uuid].parent
        return self[uuid]

    def __getitem__(self, uuid: int) -> Track:
        return self.made[uuid - 1]

    def _add(self, track: Track) -> Track:
        self.made.append(track)
        return track

    def _uuid(self) -> int:
        return len(self.made) + 1

    def _id(self, wanted: str, used: set[int]) -> int:
        number = int(wanted) if wanted.isascii() and wanted.isdecimal() and len(wanted) <= 10 else 0
        if not 0 < number < min(_LARGEST_ID, _FIRST_MADE) or number in used:
            return self._made_id()
        used.add(number)
        return number

    def _made_id(self) -> int:
        self._next_id += 1
        return self._next_id


Value = Literal["flag", "float", "int", "text", "uint"]


class Argument(Struct, frozen=True, kw_only=True):
    """An argument of events: a column of values, and the events that have it."""

    name: str
    value: Value
    values: Array
    """Shape (n,); codes if the argument is text."""
    present: Array | None = None
    """Flags of shape (n,); ``None``: every event has the argument."""


class Events(Struct, frozen=True, kw_only=True):
    """Events of one kind as columns of shape (n,)."""

    kind: Literal["slices", "instants", "counters"]
    track: Array
    """Uuid of the track; for slices the track before they are spread over lanes."""
    start_ns: Array
    end_ns: Array
    """End of a slice; other events: their start."""
    name: Array
    """Codes; unused for counters."""
    category: Array
    """Codes."""
    flow: Array
    """Number of the event's arrow, uint64; 0: none."""
    arguments: tuple[Argument, ...] = ()
    value: Array | None = None
    """Sample of a counter, float64."""

    def __len__(self) -> int:
        """Number of events."""
        return len(self.track)


def of_column(name: str, column: Column, values: Array) -> Argument:
    """A declared column as an argument, absent where the source has no value."""
    present: Array | None = None
    if column.nullable or values.dtype.kind == "f":
        present = ~np.isnan(values) if values.dtype.kind == "f" else values != MISSING
        if present.all():
            present = None
    return Argument(name=name, value=_value(column, values), values=values, present=present)


def _value(column: Column, values: Array) -> Value:
    if column.text:
        return "text"
    kinds: dict[str, Value] = {"b": "flag", "f": "float", "u": "uint"}
    return kinds.get(values.dtype.kind, "int")


def op_of(rows: Rows) -> Argument:
    """Number of the host op that each row belongs to."""
    ops = rows["op"]
    return Argument(name=words.OP_ARGUMENT, value="int", values=ops, present=ops != MISSING)


def spread(argument: Argument, rows: Array, size: int) -> Argument:
    """An argument of some of ``size`` events: event ``rows[i]`` has ``values[i]``."""
    values = np.zeros(size, argument.values.dtype)
    values[rows] = argument.values
    present = np.zeros(size, np.bool_)
    present[rows] = True if argument.present is None else argument.present
    return Argument(name=argument.name, value=argument.value, values=values, present=present)


def constant(code: int, size: int) -> Array:
    """The same code for all events."""
    return np.full(size, code, np.int64)


def no_flow(size: int) -> Array:
    """Arrow numbers of events without arrows."""
    return np.zeros(size, np.uint64)


def together(parts: Sequence[Events]) -> Events:
    """Merge events of one kind that share tracks; an argument that a part lacks is absent there."""
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part) for part in parts]
    begins = np.concatenate(([0], np.cumsum(sizes))).astype(int)
    total = int(begins[-1])
    result: dict[tuple[str, Value], list[tuple[int, Argument]]] = {}
    for index, part in enumerate(parts):
        for argument in part.arguments:
            result.setdefault((argument.name, argument.value), []).append((index, argument))
    arguments = []
    for (name, value), held in result.items():
        values = np.zeros(total, np.result_type(*(argument.values.dtype for _, argument in held)))
        present = np.zeros(total, np.bool_)
        for index, argument in held:
            part_of = slice(begins[index], begins[index + 1])
            values[part_of] = argument.values
            present[part_of] = True if argument.present is None else argument.present
        arguments.append(Argument(name=name, value=value, values=values, present=present))
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("track", "start_ns", "end_ns", "name", "category", "flow")
    }
    return Events(kind=parts[0].kind, arguments=tuple(arguments), **columns)
