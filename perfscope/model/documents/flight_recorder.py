"""The dump of a rank's NCCL flight recorder: its groups and its last collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

State = Literal["scheduled", "started", "completed"]

STATES: tuple[State, ...] = ("scheduled", "started", "completed")


class RecordedGroup(Struct, frozen=True, kw_only=True):
    """A process group that the rank is in."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Members in the order of their ranks in the group; empty where it was not recorded."""


class RecordedCall(Struct, frozen=True, kw_only=True):
    """One collective, or one send or receive, as the rank enqueued it."""

    group: str
    """Name of its process group."""
    description: str = ""
    """The program's name of that group."""
    operation: str
    """``all_reduce``, ``send`` ..., one spelling each."""
    sequence: int
    """Number among the group's collectives; of a send or receive, among the group's sends and receives."""
    peer: tuple[int, int] | None = None
    """(from, to) of a send or receive, as ranks in the group."""
    state: State
    retired: bool = False
    """Whether the watchdog removed it from its list: it ended, whatever its state is."""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    created_ns: int | None = None
    """Since 1970, when the host enqueued it."""
    started_ns: int | None = None
    completed_ns: int | None = None
    """When the watchdog saw that it had ended."""
    timeout_ns: int | None = None
    file: str | None = None
    """The user's line that called it, where stacks were recorded."""
    line: int | None = None

    @property
    def pending(self) -> bool:
        """It had not ended when the recorder was dumped."""
        return self.state != "completed" and not self.retired

    def label(self) -> str:
        """``all_to_all 4096x5120 BFloat16``."""
        shape = ", ".join("x".join(map(str, size)) for size in self.input_sizes[:2] if size)
        return " ".join(filter(None, (self.operation, shape, self.dtypes[0] if self.dtypes else "")))


class Progress(Struct, frozen=True, kw_only=True):
    """How far a rank is in a group: numbers of its last enqueued and last completed collective."""

    enqueued: int
    completed: int


class FlightRecord(Struct, frozen=True, kw_only=True):
    """One rank's dump."""

    path: str
    rank: int | None
    version: str
    nccl_version: str | None = None
    groups: tuple[RecordedGroup, ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    """In the order they were enqueued. A ring buffer: earlier ones may have been overwritten or left out."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """By group name, if it is recorded and known to belong to that group."""

    def group(self, name: str) -> RecordedGroup | None:
        """The group of that name, if the rank is in it."""
        return next((group for group in self.groups if group.name == name), None)
