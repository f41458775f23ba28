"""Training of one rank over time: its present step time, and when the step time changed, and at which line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.plugins.history import change_points
from perfscope.plugins.job.charge import COLUMN, TRAINS, Charged, training_lines

LEAST = 0.05
"""Smallest relative change that is reported: rows of ten seconds on a shared machine differ by a few per cent."""
MOST_POINTS = 256
"""Points of a series: the statistic takes quadratic time. Rows of a longer job are joined in pairs, as often as needed.
"""
LATEST = 3
"""Rows that make the present step time: half a minute at first."""


class Point(NamedTuple):
    """Some neighbouring rows of a rank."""

    begin_ns: int
    """Since 1970."""
    steps: int
    lines: Counter[str]
    """Training time by the program's line."""

    @property
    def step_ns(self) -> float:
        """Training time per step."""
        return self.lines.total() / self.steps


class StepChange(Struct, frozen=True, kw_only=True):
    """The level of the step time changed on a rank."""

    rank: int | None
    unix_ns: int
    """Begin of the new level."""
    before_ns: float
    """Median training time per step before, back to the change before it."""
    after_ns: float
    change: float
    """Relative."""
    line: str
    """Line of the program whose time per step changed most in the same direction."""
    line_ns: float
    """Change of its time per step."""


class RankState(Struct, frozen=True, kw_only=True):
    """A rank at its last rows."""

    rank: int | None
    host: str
    steps: int
    """Completed steps of its last process."""
    step_ns: float | None
    """Training time per step of its last rows; ``None`` without steps in them."""
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
    trained = charged.by_row[1:, [COLUMN[cause] for cause in sorted(TRAINS)]].sum(axis=1)
    stepped = [number for number, row in enumerate(rows) if row.steps][1:-1]
    stepped = [number for number in stepped if trained[number] > 0]
    size = 1
    while len(stepped) > size * MOST_POINTS:
        size *= 2
    groups = np.full(len(rows), -1)
    groups[stepped] = np.arange(len(stepped)) // size
    found = []
    for number, lines in enumerate(training_lines(charged, groups)):
        members = stepped[number * size : (number + 1) * size]
        found.append(Point(rows[members[0]].begin + offset, sum(rows[at].steps for at in members), lines))
    return found


def joined(points: list[Point]) -> list[Point]:
    """The same with neighbours joined, so that there are at most ``MOST_POINTS``."""
    while len(points) > MOST_POINTS:
        pairs = [points[start : start + 2] for start in range(0, len(points), 2)]
        points = [
            Point(pair[0].begin_ns, sum(point.steps for point in pair), _sum(point.lines for point in pair))
            for pair in pairs
        ]
    return points


def step_changes(rank: int | None, points: Sequence[Point]) -> list[StepChange]:
    """Changes of the training time per step, by time.

    Training time: without data, evaluation, checkpoints, logging and waits, which the account shows by themselves.
    """
    times = [point.step_ns for point in points]
    changes = change_points(times, least=LEAST) if times else []
    edges = [0, *(change.index for change in changes), len(times)]
    found = []
    for number, change in enumerate(changes):
        before, after = points[edges[number] : change.index], points[change.index : edges[number + 2]]
        line, line_ns = _changed_line(before, after, slower=change.change > 0)
        found.append(
            StepChange(
                rank=rank,
                unix_ns=after[0].begin_ns,
                before_ns=median(point.step_ns for point in before),
                after_ns=median(point.step_ns for point in after),
                change=change.change,
                line=line,
                line_ns=line_ns,
            )
        )
    return found


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
        tokens_per_s=tokens / seconds if tokens and seconds else None,
        loss=next((row.loss for row in reversed(rows) if row.loss is not None), None),
        resident=rows[-1].resident if rows else -1,
        gpu=next((row.gpu for row in reversed(rows) if row.gpu is not None), None),
    )


def _changed_line(before: Sequence[Point], after: Sequence[Point], *, slower: bool) -> tuple[str, float]:
    old, new = _per_step(before), _per_step(after)
    differences = {line: new.get(line, 0.0) - old.get(line, 0.0) for line in {*old, *new} if line}
    if not differences:
        return "", 0.0
    line = (max if slower else min)(sorted(differences), key=lambda name: differences[name])
    return line, differences[line]


def _per_step(points: Sequence[Point]) -> dict[str, float]:
    steps = sum(point.steps for point in points)
    return {line: ns / steps for line, ns in _sum(point.lines for point in points).items()}


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total
