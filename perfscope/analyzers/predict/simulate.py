"""Plays tasks on streams: when each begins and ends, what the time is made of, which tasks decide how long it is.

A stream runs its tasks in the order they are listed; a task begins when the one before it on its stream is done and
all it waits for. Nothing else is modelled: streams do not slow one another down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perfscope.analyzers.predict.spans import Parts

Kind = Literal["compute", "communication", "copy"]

PRIORITY: tuple[Kind, ...] = ("compute", "communication", "copy")
"""What a moment counts as where several run: the first of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One piece of work on a stream. Times in ns."""

    kind: Kind
    stream: int
    duration: int
    gap: int = 0
    """Between the end of the one before it on its stream, or what it waited for, and its begin: the launch."""
    waits: tuple[int, ...] = ()
    """Indices of earlier tasks that must be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The tasks in time, each by its index."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    decided_by: tuple[int, ...]
    """The task whose end the begin waited for; -1: the beginning."""
    parts: Parts
    exposed: tuple[int, ...]
    """Time in which nothing of a kind before a task's own ran; where several of a kind do, it is the oldest's."""

    @property
    def makespan(self) -> int:
        """From the beginning to the last end."""
        return max(self.ends, default=0)

    def critical(self) -> frozenset[int]:
        """Tasks that each had to end for the next to begin, back from the one that ends last."""
        found = set()
        at = max(range(len(self.ends)), key=lambda index: (self.ends[index], index), default=-1)
        while at >= 0:
            found.add(at)
            at = self.decided_by[at]
        return frozenset(found)


def play(tasks: Sequence[Task]) -> Played:
    """All tasks in time. Linear in tasks and what they wait for, but for sorting their ends."""
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
    """The stretch from 0 to the last end by what ran, and of each task the time that is laid to it."""
    exposed = [0] * len(tasks)
    moments = sorted(
        [(time, 1, index) for index, time in enumerate(starts)] + [(time, 0, index) for index, time in enumerate(ends)]
    )
    running: dict[Kind, dict[int, None]] = {kind: {} for kind in PRIORITY}
    spent: dict[Kind, int] = dict.fromkeys(PRIORITY, 0)
    gaps = now = 0
    for time, begins, index in moments:
        if time > now:
            kind = next((one for one in PRIORITY if running[one]), None)
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
