"""The clocks and the tracks of a Perfetto trace.

A packet names its clock or takes the default of its sequence. Clocks 64 to 127 belong to one sequence: they are
defined by a snapshot in it, may count in other units, and may be written as differences. The others (boot time,
monotonic, realtime ...) are the machine's, and snapshots taken from time to time say how they relate.
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


class _Own(Struct):
    """A clock of one sequence."""

    offset_ns: int
    """Add it to the clock's time in ns to have that of ``base``."""
    base: int
    unit_ns: int
    incremental: bool
    last: int
    """Of an incremental one: the last time in its own units."""


class Clocks(Struct):
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

    def of_sequence(self, sequence: int, clock: int, time: int) -> tuple[int, int]:
        """A time on a sequence's own clock in ns, and the machine's clock it is on then.

        ``MISSING`` as the clock: no snapshot defines it.
        """
        own = self._own.get((sequence, clock))
        if own is None:
            return time, MISSING
        if own.incremental:
            time = own.last = own.last + time
        return signed(time * own.unit_ns + own.offset_ns), own.base

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


class Track(Struct, frozen=True, kw_only=True):
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
    """The low 64 bits of a number as two's complement."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


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
