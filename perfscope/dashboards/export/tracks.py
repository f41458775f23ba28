"""The tracks of an export: processes and devices, their threads and streams, lanes and counters below them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["process", "thread", "plain", "counter"]

_LARGEST_ID = 2**31 - 1
"""Process and thread ids are 32-bit numbers in both formats."""
_FIRST_MADE = 1 << 30
"""Ids that we make for devices, streams and clashes begin here: above what systems hand out (2^22 on Linux)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One track. ``uuid`` is its number in the file; ``pid`` and ``tid`` are unique in it."""

    uuid: int
    kind: Kind
    name: str
    parent: int = 0
    pid: int = 0
    tid: int = 0
    unit: str = ""
    """Of a counter: ``B`` or as its source has it."""


class Tracks:
    """Makes tracks with ids that clash with no other, also where ranks of several hosts come together."""

    def __init__(self) -> None:
        self.made: list[Track] = []
        self._pids: set[int] = set()
        self._tids: set[int] = set()
        self._next_id = _FIRST_MADE
        self._told: set[int] = set()

    def process(self, name: str, wanted: str = "") -> Track:
        """The track of a process or device; ``wanted``: its id, if that is a number and free."""
        return self._add(Track(uuid=self._uuid(), kind="process", name=name, pid=self._id(wanted, self._pids)))

    def thread(self, process: Track, name: str, wanted: str = "") -> Track:
        """The track of a thread or stream of ``process``."""
        tid = self._id(wanted, self._tids)
        return self._add(
            Track(uuid=self._uuid(), kind="thread", name=name, parent=process.uuid, pid=process.pid, tid=tid)
        )

    def plain(self, parent: Track, name: str) -> Track:
        """A track below another: a lane, or a row of its own in a process."""
        made = Track(
            uuid=self._uuid(), kind="plain", name=name, parent=parent.uuid, pid=parent.pid, tid=self._made_id()
        )
        return self._add(made)

    def counter(self, parent: Track, name: str, unit: str = "") -> Track:
        """The track of a counter."""
        return self._add(
            Track(uuid=self._uuid(), kind="counter", name=name, parent=parent.uuid, pid=parent.pid, unit=unit)
        )

    def told(self, track: Track) -> bool:
        """True the first time it is asked of a track: whoever writes must describe it now."""
        if track.uuid in self._told:
            return False
        self._told.add(track.uuid)
        return True

    def top(self, uuid: int) -> Track:
        """The topmost track above a track: its process."""
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
