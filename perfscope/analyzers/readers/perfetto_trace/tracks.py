"""Tracks: which process and thread an event belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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
        for one in self._upwards(uuid):
            if one.tid is not None:
                return one
        return self.get(uuid)

    def process_of(self, uuid: int) -> Track:
        """The process at or above a track, or its topmost one."""
        last = self.get(uuid)
        for one in self._upwards(uuid):
            last = one
            if one.tid is None and one.pid is not None:
                return one
        return last

    def _upwards(self, uuid: int) -> list[Track]:
        found = []
        for _ in range(MOST_STEPS):
            one = self.get(uuid)
            found.append(one)
            if not one.parent or one.parent == uuid:
                break
            uuid = one.parent
        return found
