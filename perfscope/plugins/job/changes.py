"""When the step time of a job changed, by the rows of its ledgers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from perfscope.plugins.history import change_points
from perfscope.plugins.job.account import JobAccount, StepRow

LEAST = 0.05
"""Smallest relative change that is reported: rows of ten seconds on a shared machine differ by a few per cent."""
MOST_POINTS = 500
"""Points of a series, for which the statistic is made; rows of a longer job are joined."""
LEAST_STEPS = 1


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


def step_changes(account: JobAccount) -> tuple[StepChange, ...]:
    """Changes of the training time per step, by time.

    Training time: without data, evaluation, checkpoints, logging and waits, which the account shows by themselves.
    """
    found: list[StepChange] = []
    for rank, rows in account.series:
        points = _points(rows)
        times = [ns for _, ns in points]
        changes = change_points(times, least=LEAST) if times else []
        edges = [0, *(change.index for change in changes), len(times)]
        for number, change in enumerate(changes):
            found.append(
                StepChange(
                    rank=rank,
                    unix_ns=points[change.index - 1][0],
                    before_ns=median(times[edges[number] : change.index]),
                    after_ns=median(times[change.index : edges[number + 2]]),
                    change=change.change,
                )
            )
    return tuple(sorted(found, key=lambda change: change.unix_ns))


def _points(rows: Sequence[StepRow]) -> list[tuple[int, float]]:
    """(End, training time per step) of rows with steps, joined so that there are at most ``MOST_POINTS``.

    The first and the last row of a process hold parts of other phases and are left out.
    """
    stepped = [row for row in rows if row.steps >= LEAST_STEPS and row.training_ns > 0][1:-1]
    joined = math.ceil(len(stepped) / MOST_POINTS) or 1
    points = []
    for start in range(0, len(stepped), joined):
        part = stepped[start : start + joined]
        points.append((part[-1].unix_ns, sum(row.training_ns for row in part) / sum(row.steps for row in part)))
    return points
