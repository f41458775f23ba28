"""What packets leave unsaid because their sequence has said it before: strings, the default clock and track.

Strings are interned by a sequence and forgotten when its state is cleared: a *generation* is what lies between two
clearings of one sequence, and numbers mean something within it only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfscope.analyzers.readers.perfetto.wire import Buffer, Fields, Int, walk
from perfscope.model.trace import TraceBuilder
from perfscope.model.trace.columns import MISSING

CATEGORIES, NAMES, ARGUMENT_NAMES, TEXTS = 1, 2, 3, 29
"""Fields of ``InternedData`` that are read; the number is also the kind of string."""
_KINDS = (CATEGORIES, NAMES, ARGUMENT_NAMES, TEXTS)

_CLEARED = 1


def codes_of_fields(strings: TraceBuilder, fields: Fields, buffer: Buffer) -> Int:
    """Codes of fields that hold text."""
    known: dict[bytes, int] = {}
    codes = np.empty(len(fields.a), np.int64)
    for index, (start, end) in enumerate(zip(fields.a.tolist(), fields.b.tolist(), strict=True)):
        raw = buffer.data[start:end]
        code = known.get(raw)
        if code is None:
            code = known[raw] = strings.code(raw.decode("utf-8", "replace"))
        codes[index] = code
    return codes


@dataclass(slots=True)
class Sequences:
    """The state of every sequence."""

    strings: TraceBuilder
    defaults: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Generation -> (default clock or 0, default track or 0)."""
    _current: dict[int, int] = field(default_factory=dict)
    _count: int = 0
    _interned: dict[int, dict[int, dict[int, int]]] = field(default_factory=dict)
    """Kind -> generation -> number -> code."""

    def generations(self, sequence: Int, flags: Int, cleared: Int) -> Int:
        """Generation of each packet; packets in their order, shapes (n,)."""
        begins = ((flags & _CLEARED) != 0) | (cleared > 0)
        result = np.empty(len(sequence), np.int64)
        for one in np.unique(sequence).tolist():
            mine = np.flatnonzero(sequence == one)
            if one not in self._current:
                self._current[one] = self._new()
            fresh = np.cumsum(begins[mine])
            ids = np.array([self._current[one], *(self._new() for _ in range(int(fresh[-1])))], np.int64)
            result[mine] = ids[fresh]
            self._current[one] = int(ids[-1])
        return result

    def _new(self) -> int:
        self._count += 1
        return self._count

    def intern(self, buffer: Buffer, messages: Fields, generation: Int, shown: str) -> None:
        """Take in the ``InternedData`` of packets; ``generation`` of each of ``messages``."""
        fields = walk(buffer, messages.a, messages.b, shown).messages()
        fields = fields.take(np.isin(fields.number, _KINDS))
        inner = walk(buffer, fields.a, fields.b, shown)
        numbers = inner.of(1).numbers().column(len(fields.a), 0)
        named = inner.of(2).messages()
        codes = np.full(len(fields.a), self.strings.code(""), np.int64)
        codes[named.row] = codes_of_fields(self.strings, named, buffer)
        columns = (fields.number, generation[fields.row], numbers, codes)
        for kind, of, number, code in zip(*(column.tolist() for column in columns), strict=True):
            self._interned.setdefault(kind, {}).setdefault(of, {})[number] = code

    def codes(self, kind: int, generation: Int, number: Int) -> Int:
        """Codes of interned strings; ``MISSING`` for a number that the generation never defined."""
        result = np.full(len(number), MISSING, np.int64)
        tables = self._interned.get(kind, {})
        for of in np.unique(generation).tolist():
            table = tables.get(of)
            if table is None:
                continue
            mine = np.flatnonzero(generation == of)
            used, inverse = np.unique(number[mine], return_inverse=True)
            result[mine] = np.array([table.get(one, MISSING) for one in used.tolist()], np.int64)[inverse]
        return result


# The clocks of a Perfetto trace: every time on its primary clock.
#
# A packet names its clock or takes the default of its sequence. Clocks 64 to 127 belong to one sequence: they are
# defined by a snapshot in it, may count in other units, and may be written as differences. The others (boot time,
# monotonic, realtime ...) are the machine's, and snapshots taken from time to time say how they relate.


BOOT_TIME = 6
_FIRST_OF_SEQUENCE, _LAST_OF_SEQUENCE = 64, 127


@dataclass(slots=True)
class _Own:
    """A clock of one sequence."""

    offset_ns: int
    """Add it to the clock's time in ns to have that of ``base``."""
    base: int
    unit_ns: int
    incremental: bool
    last: int
    """Of an incremental one: the last time in its own units."""


@dataclass(slots=True)
class Clocks:
    """What the snapshots of a file say."""

    primary: int = BOOT_TIME
    _own: dict[tuple[int, int], _Own] = field(default_factory=dict)
    _pending: list[dict[int, int]] = field(default_factory=list)

    def add(self, sequence: int, snapshot: Any) -> None:
        """One snapshot of several clocks at the same moment."""
        if snapshot.primary_trace_clock:
            self.primary = snapshot.primary_trace_clock
        shared = {clock.clock_id: clock.timestamp for clock in snapshot.clocks if not is_sequence_clock(clock.clock_id)}
        self._pending.append(shared)
        base = next((one for one in (self.primary, BOOT_TIME, *sorted(shared)) if one in shared), None)
        if base is None:
            return
        for clock in snapshot.clocks:
            if is_sequence_clock(clock.clock_id):
                unit = clock.unit_multiplier_ns or 1
                self._own[sequence, clock.clock_id] = _Own(
                    offset_ns=shared[base] - clock.timestamp * unit,
                    base=base,
                    unit_ns=unit,
                    incremental=clock.is_incremental,
                    last=clock.timestamp,
                )

    def of_sequence(self, sequence: int, clock: int, times: Int) -> tuple[Int, int] | None:
        """Times of a sequence's own clock, in the order of the packets: in ns, and the clock they are on then.

        ``None``: no snapshot defines it.
        """
        own = self._own.get((sequence, clock))
        if own is None:
            return None
        if own.incremental and len(times):
            times = np.cumsum(times) + own.last
            own.last = int(times[-1])
        return times * own.unit_ns + own.offset_ns, own.base

    def to_primary(self, clock: int, times_ns: Int) -> Int | None:
        """Times of a machine's clock on the primary one, by the last snapshot before each; ``None``: unknown."""
        if clock == self.primary:
            return times_ns
        pairs = sorted(
            (shared[clock], shared[self.primary])
            for shared in self._pending
            if clock in shared and self.primary in shared
        )
        if not pairs:
            return None
        own, primary = np.array(pairs, np.int64).T
        positions = np.maximum(np.searchsorted(own, times_ns, side="right") - 1, 0)
        return np.asarray(times_ns + (primary - own)[positions], np.int64)


def is_sequence_clock(clock: int) -> bool:
    """True for a clock that belongs to one sequence."""
    return _FIRST_OF_SEQUENCE <= clock <= _LAST_OF_SEQUENCE


# Tracks: which process and thread an event belongs to.


MOST_STEPS = 64
"""From a track up to its process: deeper chains are loops, or made to hurt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What descriptors say of a track. Numbers are those of the file as signed 64-bit ones."""

    uuid: int
    parent: int = 0
    name: str = ""
    pid: int | None = None
    tid: int | None = None
    process_name: str = ""
    thread_name: str = ""
    counter: bool = False
    unit_multiplier: int = 1

    def with_older(self, older: Track | None) -> Track:
        """What this description says, with what only an earlier one of the track said."""
        if older is None:
            return self
        return replace(
            self,
            parent=self.parent or older.parent,
            name=self.name or older.name,
            pid=older.pid if self.pid is None else self.pid,
            tid=older.tid if self.tid is None else self.tid,
            process_name=self.process_name or older.process_name,
            thread_name=self.thread_name or older.thread_name,
            counter=self.counter or older.counter,
            unit_multiplier=self.unit_multiplier if self.counter else older.unit_multiplier,
        )


def track_of(found: Any) -> Track:
    """A decoded ``TrackDescriptor``."""
    thread, process = found.HasField("thread"), found.HasField("process")
    return Track(
        uuid=signed(found.uuid),
        parent=signed(found.parent_uuid),
        name=found.name or found.static_name or found.atrace_name,
        pid=found.thread.pid if thread else found.process.pid if process else None,
        tid=found.thread.tid if thread else None,
        process_name=found.process.process_name,
        thread_name=found.thread.thread_name,
        counter=found.HasField("counter"),
        unit_multiplier=found.counter.unit_multiplier or 1,
    )


def signed(number: int) -> int:
    """An unsigned 64-bit number as its two's complement."""
    return number - (1 << 64) if number >= 1 << 63 else number


class Tracks:
    """The tracks of a file, by number."""

    def __init__(self, known: Mapping[int, Track]) -> None:
        self._known = known

    def get(self, uuid: int) -> Track:
        """The track; one that nothing describes has its number only."""
        return self._known.get(uuid) or Track(uuid=uuid)

    def thread_of(self, uuid: int) -> Track:
        """The thread at or above a track; the track itself where there is none."""
        for track in self._upwards(uuid):
            if track.tid is not None:
                return track
        return self.get(uuid)

    def process_of(self, uuid: int) -> Track:
        """The process at or above a track, or its topmost one."""
        last = self.get(uuid)
        for track in self._upwards(uuid):
            last = track
            if track.tid is None and track.pid is not None:
                return track
        return last

    def _upwards(self, uuid: int) -> list[Track]:
        result = []
        for _ in range(MOST_STEPS):
            track = self.get(uuid)
            result.append(track)
            if not track.parent or track.parent == uuid:
                break
            uuid = track.parent
        return result
