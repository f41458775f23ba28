"""The clocks and the tracks of a Perfetto trace.

A packet has a clock, or uses the default of its sequence. Clocks 64 to 127 belong to one sequence: a snapshot in it
defines them, they may count in other units, and may be written as differences. The others (boot time, monotonic,
realtime ...) belong to the machine, and snapshots from time to time relate them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.model.trace.columns import MISSING

Int = npt.NDArray[np.int64]

BOOT_TIME = 6
_FIRST_OF_SEQUENCE, _LAST_OF_SEQUENCE = 64, 127

MOST_STEPS = 64
"""Maximum steps from a track up to its process; deeper chains are loops or malicious."""


class _Own(Struct):
    """A clock of one sequence."""

    offset_ns: int
    """Offset from the clock's time in ns to that of ``base``."""
    base: int
    unit_ns: int
    incremental: bool
    last: int
    """Last time of an incremental clock in its own units."""


class Clocks(Struct):
    """The clock snapshots of a file."""

    primary: int = BOOT_TIME
    _own: dict[tuple[int, int], _Own] = field(default_factory=dict)
    _pending: list[dict[int, int]] = field(default_factory=list)

    def add(self, sequence: int, snapshot: Any) -> None:
        """Add one snapshot of several clocks at the same moment."""
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

    def of_sequence(self, sequence: int, clock: int, time: int) -> tuple[int, int]:
        """Return a time on a sequence's own clock in ns, and the machine's clock of the result.

        ``MISSING`` as the clock if no snapshot defines it.
        """
        own = self._own.get((sequence, clock))
        if own is None:
            return time, MISSING
        if own.incremental:
            time = own.last = own.last + time
        return signed(time * own.unit_ns + own.offset_ns), own.base

    def to_primary(self, clock: int, times_ns: Int) -> Int | None:
        """Convert times of a machine's clock to the primary one by the last snapshot before each.

        ``None`` if unknown.
        """
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
    """Return whether a clock belongs to one sequence."""
    return _FIRST_OF_SEQUENCE <= clock <= _LAST_OF_SEQUENCE


# Tracks: process and thread of an event.


class Track(Struct, frozen=True, kw_only=True):
    """Description of a track. Numbers are those of the file as signed 64-bit ones."""

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
        """Return this description, completed by an earlier one of the track."""
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
    """Convert a decoded ``TrackDescriptor``."""
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
    """Return the low 64 bits of a number as two's complement."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class Tracks:
    """The tracks of a file, by number."""

    def __init__(self, known: Mapping[int, Track]) -> None:
        self._known = known

    def get(self, uuid: int) -> Track:
        """Return the track; without a description it has only its number."""
        return self._known.get(uuid) or Track(uuid=uuid)

    def thread_of(self, uuid: int) -> Track:
        """Return the thread at or above a track, or the track itself."""
        for track in self._upwards(uuid):
            if track.tid is not None:
                return track
        return self.get(uuid)

    def process_of(self, uuid: int) -> Track:
        """Return the process at or above a track, or its topmost track."""
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
