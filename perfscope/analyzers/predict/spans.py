"""A modelled time as a range, and the parts of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

PRIORITY: tuple[Kind, ...] = ("compute", "communication", "copy")
"""Kind that a moment counts as if several run: the first in this order."""


class Range(Struct, frozen=True, kw_only=True):
    """Integer ns from a fast run to a slow one. ``low <= high``.

    For kernels with measured counterparts it contains nine in ten of these; for others it reaches from the vendor's
    peaks to the efficiency of typical kernels.
    """

    low: int
    """Like the fastest measured ones, or with every peak reached and only the shortest launch of a kernel."""
    high: int
    """Like the slowest measured ones, or with assumed shares and overheads. Not a bound: a bad kernel is slower."""

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, high=self.high + other.high)

    def times(self, count: int) -> Range:
        """The time of ``count`` runs."""
        return Range(low=self.low * count, high=self.high * count)

    @property
    def middle(self) -> int:
        """Geometric mean, by which ranges of a factor are sorted and shown. 0 if either end is 0."""
        return round(math.sqrt(self.low) * math.sqrt(self.high))


NO_TIME = Range(low=0, high=0)


def ns_range(low: float, high: float) -> Range:
    """A range of whole ns around two times: the low end rounded down, the high end up and at least the low end."""
    bottom = max(0, math.floor(low))
    return Range(low=bottom, high=max(bottom, math.ceil(high)))


class Parts(Struct, frozen=True, kw_only=True):
    """Parts of a time, in ns. They sum to it exactly."""

    compute: int = 0
    """A kernel ran on the program's stream."""
    communication: int = 0
    """Only collectives ran: exposed."""
    copies: int = 0
    """Only copies between memories ran."""
    gaps: int = 0
    """Nothing ran: launches, and waiting for the host."""

    @property
    def total(self) -> int:
        """The whole time."""
        return self.compute + self.communication + self.copies + self.gaps

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            compute=self.compute + other.compute,
            communication=self.communication + other.communication,
            copies=self.copies + other.copies,
            gaps=self.gaps + other.gaps,
        )

    def times(self, count: int) -> Parts:
        """The parts of ``count`` runs."""
        return Parts(
            compute=self.compute * count,
            communication=self.communication * count,
            copies=self.copies * count,
            gaps=self.gaps * count,
        )


# Plays tasks on streams: begin and end of each task, the parts of the time, and the tasks that determine its length.
#
# A stream runs its tasks in the order listed; a task begins when its predecessor on the stream and all tasks it waits
# for are done. Nothing else is modelled: streams do not slow each other down.


Kind = Literal["compute", "communication", "copy"]


class Queued(Struct, frozen=True, kw_only=True):
    """Work in the queue of a stream."""

    kind: Kind
    stream: int
    waits: tuple[int, ...] = ()
    """Indices of earlier tasks that must be done."""


class Task(Queued, frozen=True, kw_only=True):
    """A piece of work on a stream. Times in ns."""

    duration: int
    gap: int = 0
    """Time between the end of its predecessor on the stream, or of the tasks it waited for, and its begin: the launch.
    """


class Played(Struct, frozen=True, kw_only=True):
    """The tasks in time, each by its index."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    decided_by: tuple[int, ...]
    """The task whose end determined the begin; -1: none."""
    parts: Parts
    exposed: tuple[int, ...]
    """Time in which no kind with higher priority ran; if several tasks of one kind ran, it counts for the oldest."""

    @property
    def makespan(self) -> int:
        """From the start to the last end."""
        return max(self.ends, default=0)

    def critical(self) -> frozenset[int]:
        """Tasks that each had to end for the next to begin, backwards from the last end."""
        result = set()
        index = max(range(len(self.ends)), key=lambda index: (self.ends[index], index), default=-1)
        while index >= 0:
            result.add(index)
            index = self.decided_by[index]
        return frozenset(result)


def play(tasks: Sequence[Task]) -> Played:
    """Play all tasks. Linear in tasks and dependencies, except for sorting their ends."""
    starts: list[int] = []
    ends: list[int] = []
    decided: list[int] = []
    last: dict[int, int] = {}
    for index, task in enumerate(tasks):
        before = last.get(task.stream, -1)
        cause, ready = -1, 0
        for other in (before, *task.waits):
            if other >= 0 and ends[other] >= ready:
                cause, ready = other, ends[other]
        starts.append(ready + task.gap)
        ends.append(ready + task.gap + task.duration)
        decided.append(cause)
        last[task.stream] = index
    parts, exposed = _divide(tasks, starts, ends)
    return Played(
        starts=tuple(starts), ends=tuple(ends), decided_by=tuple(decided), parts=parts, exposed=tuple(exposed)
    )


def _divide(tasks: Sequence[Task], starts: Sequence[int], ends: Sequence[int]) -> tuple[Parts, list[int]]:
    """Divide the time from 0 to the last end by kind, and attribute it to tasks."""
    exposed = [0] * len(tasks)
    moments = sorted(
        [(time, 1, index) for index, time in enumerate(starts)] + [(time, 0, index) for index, time in enumerate(ends)]
    )
    running: dict[Kind, dict[int, None]] = {kind: {} for kind in PRIORITY}
    spent: dict[Kind, int] = dict.fromkeys(PRIORITY, 0)
    gaps = now = 0
    for time, begins, index in moments:
        if time > now:
            kind = next((kind for kind in PRIORITY if running[kind]), None)
            if kind is None:
                gaps += time - now
            else:
                spent[kind] += time - now
                exposed[next(iter(running[kind]))] += time - now
            now = time
        if begins and ends[index] > starts[index]:
            running[tasks[index].kind][index] = None
        elif not begins:
            running[tasks[index].kind].pop(index, None)
    parts = Parts(compute=spent["compute"], communication=spent["communication"], copies=spent["copy"], gaps=gaps)
    return parts, exposed
