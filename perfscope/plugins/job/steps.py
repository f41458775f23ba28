"""Steps of one rank over time: its present step time, and when the step time changed, by which cause and line.

A step's time is that of the rows in which steps run, without what comes and goes by itself: evaluation, checkpoints,
compilation. Rows with steps but without a part of the step (a save that takes a whole row) are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.model.frames.kinds import FrameKind
from perfscope.plugins.history import change_points
from perfscope.plugins.job.causes import Cause, Place, cause_in
from perfscope.plugins.job.charge import COLUMN, TRAINS, Charged, grouped

LEAST = 0.05
"""Smallest relative change that is reported: rows of ten seconds on a shared machine differ by a few per cent."""
MOST_POINTS = 256
"""Points of a series: the statistic takes quadratic time. Rows of a longer job are joined in pairs, as often as needed.
"""
LATEST = 3
"""Rows that make the present step time: half a minute at first."""
LATEST_OWN = 30
"""Rows that are compared between ranks: their noise must be smaller than the difference that is reported."""

NEAR_ROWS = 3
"""Rows between changes of both series that are one change."""

OF_STEPS: frozenset[Cause] = frozenset(
    {
        "training steps",
        "warm-up steps",
        "waiting for data",
        "logging",
        "waiting for ranks",
        "waiting for a core",
        "waiting for a thread or process",
        "sleeping",
    }
)
"""Causes that a step has again and again."""
MAY_WAIT = frozenset(
    {FrameKind.AUTOGRAD, FrameKind.OPTIMIZER, FrameKind.DEVICE_WAIT, FrameKind.DEVICE_READ, FrameKind.COLLECTIVE}
)
"""Kinds of calls in which a rank may wait for others: collectives of a backward pass run inside of it."""


class Part(NamedTuple):
    """A part of the step."""

    cause: Cause
    line: str
    may_wait: bool
    """Whether the rank may wait for other ranks in it."""


CORE = Part("waiting for a core", "", may_wait=False)


class Point(NamedTuple):
    """Some neighbouring rows of a rank."""

    begin_ns: int
    """Since 1970."""
    end_ns: int
    steps: int
    parts: Counter[Part]
    """Time of the steps, ns."""
    ran_ns: int
    """Processor time of the thread of the steps; 0: not known."""

    @property
    def step_ns(self) -> float:
        """Time per step."""
        return self.parts.total() / self.steps

    @property
    def own_ns(self) -> float:
        """The same without waiting for a core, and without calls that wait for other ranks."""
        return sum(ns for part, ns in self.parts.items() if _is_own(part)) / self.steps


Series = Literal["own time", "step time"]
"""Time per step without waits for other ranks or a core, and all of it."""


class StepChange(Struct, frozen=True, kw_only=True):
    """The level of the step time changed on a rank."""

    rank: int | None
    series: Series
    unix_ns: int
    """Begin of the new level."""
    within_ns: int
    """Length of the rows there: ranks that changed together differ by about as much."""
    before_ns: float
    """Median of the series per step before, back to the change before it."""
    after_ns: float
    change: float
    """Relative."""
    cause: Cause
    """Cause whose line changed most in the same direction."""
    line: str
    """That line of the program; empty for a cause without one."""
    line_ns: float
    """Change of its time per step."""
    own_ns: float
    """Change of the time per step in which the rank did not wait for other ranks."""
    waits: tuple[int, ...] = ()
    """Ranks that became slower or faster at the same time because they wait for this one."""


class RankState(Struct, frozen=True, kw_only=True):
    """A rank at its last rows."""

    rank: int | None
    host: str
    steps: int
    """Completed steps of its last process."""
    step_ns: float | None
    """Training time per step of its last rows; ``None`` without steps in them."""
    own_ns: float | None
    """Time per step of its last rows in which it did not wait for other ranks; ``None`` without steps in them."""
    last_ns: int
    """End of its last row, since 1970."""
    ended: bool
    """Whether its last process ended by itself."""
    tokens_per_s: float | None
    """Throughput in the last rows; ``None`` if the program reports no tokens."""
    loss: float | None
    resident: int
    """Bytes; -1: unknown."""
    gpu: tuple[float, float, int] | None
    """Utilisation (share), power (W), bytes that the allocator has given out."""


def points_of(charged: Charged) -> list[Point]:
    """Rows of a process that hold whole steps; its first and last such row hold parts of other phases."""
    offset = charged.ledger.head.unix_ns - charged.ledger.head.began_ns
    rows = charged.ledger.rows
    of_steps = charged.by_row[1:, [COLUMN[cause] for cause in sorted(OF_STEPS)]].sum(axis=1)
    stepped = [number for number, row in enumerate(rows) if row.steps][1:-1]
    stepped = [number for number in stepped if of_steps[number] > 0]
    size = 1
    while len(stepped) > size * MOST_POINTS:
        size *= 2
    groups = np.full(len(rows), -1)
    groups[stepped] = np.arange(len(stepped)) // size
    found = []
    for number, parts in enumerate(grouped(charged, groups, _part_of)):
        members = [rows[at] for at in stepped[number * size : (number + 1) * size]]
        if core := sum(row.core for row in members):
            parts[CORE] += core
        end = members[-1].end or members[-1].begin
        ran = sum(row.ran for row in members)
        steps = sum(row.steps for row in members)
        found.append(Point(members[0].begin + offset, end + offset, steps, parts, ran))
    return found


def joined(points: list[Point]) -> list[Point]:
    """The same with neighbours joined, so that there are at most ``MOST_POINTS``."""
    while len(points) > MOST_POINTS:
        pairs = [points[start : start + 2] for start in range(0, len(points), 2)]
        points = [
            Point(
                pair[0].begin_ns,
                pair[-1].end_ns,
                sum(point.steps for point in pair),
                _sum(point.parts for point in pair),
                sum(point.ran_ns for point in pair),
            )
            for pair in pairs
        ]
    return points


def step_changes(rank: int | None, points: Sequence[Point]) -> list[StepChange]:
    """Changes of the own time per step and of the whole, by time.

    The own time has no waits for other ranks or for a core: other programs on the machine do not hide its changes. A
    change of the whole near one of those is the same.
    """
    own = _changes(rank, points, "own time")
    taken = [change.unix_ns for change in own]
    whole = [
        change
        for change in _changes(rank, points, "step time")
        if all(abs(change.unix_ns - at) > NEAR_ROWS * change.within_ns for at in taken)
    ]
    return sorted([*own, *whole], key=lambda change: change.unix_ns)


def _changes(rank: int | None, points: Sequence[Point], series: Series) -> list[StepChange]:
    if not points:
        return []
    typical = median(point.step_ns for point in points)
    values = [point.own_ns if series == "own time" else point.step_ns for point in points]
    # The own time is judged relative to the step: it may be 0 in a row.
    offset = typical if series == "own time" else 0.0
    changes = change_points([value + offset for value in values], least=LEAST)
    edges = [0, *(change.index for change in changes), len(values)]
    found = []
    for number in range(len(changes)):
        first, middle, last = edges[number : number + 3]
        before, after = points[first:middle], points[middle:last]
        differences = _differences(before, after)
        was, now = median(values[first:middle]), median(values[middle:last])
        if abs(now - was) < LEAST * typical:
            continue
        if series == "own time":
            differences = {part: ns for part, ns in differences.items() if _is_own(part)}
        part = _changed_part(_excess(differences, before, after), slower=now > was)
        found.append(
            StepChange(
                rank=rank,
                series=series,
                unix_ns=after[0].begin_ns,
                within_ns=after[0].end_ns - after[0].begin_ns,
                before_ns=was,
                after_ns=now,
                change=now / was - 1 if was else 1.0,
                cause=part.cause,
                line=part.line,
                line_ns=differences[part],
                own_ns=now - was if series == "own time" else _own_ns(differences, before, after),
            )
        )
    return found


def _is_own(part: Part) -> bool:
    return not part.may_wait and part != CORE


def state_of(rank: int | None, charged: Charged) -> RankState:
    """The state of a rank by its last process."""
    rows = charged.ledger.rows
    late = [number for number, row in enumerate(rows) if row.steps][-LATEST:]
    latest = [rows[number] for number in late]
    steps, seconds = sum(row.steps for row in latest), sum((row.end or row.begin) - row.begin for row in latest) / 1e9
    tokens = sum(row.tokens for row in latest)
    training = int(charged.by_row[1:, [COLUMN[cause] for cause in sorted(TRAINS)]][late].sum())
    return RankState(
        rank=rank,
        host=charged.ledger.head.host,
        steps=sum(row.steps for row in rows),
        step_ns=training / steps if steps else None,
        own_ns=_own_step_ns(points_of(charged)[-LATEST_OWN:]),
        last_ns=charged.ledger.head.unix_ns + charged.ledger.end_ns - charged.ledger.head.began_ns,
        ended=charged.ledger.ended,
        tokens_per_s=tokens / seconds if tokens and seconds else None,
        loss=next((row.loss for row in reversed(rows) if row.loss is not None), None),
        resident=rows[-1].resident if rows else -1,
        gpu=next((row.gpu for row in reversed(rows) if row.gpu is not None), None),
    )


def _part_of(place: Place, phase: int) -> Part | None:
    cause = cause_in(place, phase)
    return Part(cause, place.line, place.kind in MAY_WAIT) if cause in OF_STEPS else None


def _differences(before: Sequence[Point], after: Sequence[Point]) -> dict[Part, float]:
    """Change of the time per step by part, ns."""
    old, new = _per_step(before), _per_step(after)
    return {part: new.get(part, 0.0) - old.get(part, 0.0) for part in sorted({*old, *new})}


def _excess(differences: dict[Part, float], before: Sequence[Point], after: Sequence[Point]) -> dict[Part, float]:
    """The same without the waiting for a core that follows from running longer, in proportion, on a busy machine."""
    ran = _ran_per_step(before), _ran_per_step(after)
    if not ran[0] or ran[1] <= ran[0] or CORE not in differences:
        return differences
    follows = _per_step(before).get(CORE, 0.0) * (ran[1] / ran[0] - 1)
    return {**differences, CORE: differences[CORE] - follows}


def _own_ns(differences: dict[Part, float], before: Sequence[Point], after: Sequence[Point]) -> float:
    """Change of the time per step without waiting for other ranks, ns.

    A part in which the rank may wait counts as far as the thread's processor time changed with it.
    """
    own = sum(ns for part, ns in differences.items() if not part.may_wait)
    engines = sum(ns for part, ns in differences.items() if part.may_wait)
    ran = _ran_per_step(after) - _ran_per_step(before)
    low, high = min(0.0, engines), max(0.0, engines)
    return own + min(max(ran - own, low), high)


_RUNS: frozenset[Cause] = frozenset({"training steps", "warm-up steps", "logging"})
"""Causes in which the thread mostly runs."""


def _own_step_ns(points: Sequence[Point]) -> float | None:
    if not points:
        return None
    parts = _per_step(points)
    own = sum(ns for part, ns in parts.items() if not part.may_wait)
    engines = sum(ns for part, ns in parts.items() if part.may_wait)
    ran = _ran_per_step(points)
    runs = sum(ns for part, ns in parts.items() if not part.may_wait and part.cause in _RUNS)
    return own + (min(engines, max(0.0, ran - runs)) if ran else engines)


def _changed_part(differences: dict[Part, float], *, slower: bool) -> Part:
    """The part that changed most in the direction; one in which no rank is waited for if those carry the change."""
    own = {part: ns for part, ns in differences.items() if not part.may_wait}
    side = own if own and 2 * abs(sum(own.values())) >= abs(sum(differences.values())) else differences
    return (max if slower else min)(side, key=side.__getitem__)


def _ran_per_step(points: Sequence[Point]) -> float:
    return sum(point.ran_ns for point in points) / sum(point.steps for point in points)


def _per_step(points: Sequence[Point]) -> dict[Part, float]:
    steps = sum(point.steps for point in points)
    return {part: ns / steps for part, ns in _sum(point.parts for point in points).items()}


def _sum(counters: Iterable[Counter[Part]]) -> Counter[Part]:
    total: Counter[Part] = Counter()
    for counter in counters:
        total.update(counter)
    return total
