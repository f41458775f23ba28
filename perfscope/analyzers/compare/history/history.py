"""One run per commit: is the newest out of line, and where did the series change level? Reports, never gates.

A hundred benchmarks at 2% false alarms each are two a commit, and runs days apart differ in more than the code.

Change points: the energy statistic of E-divisive (Matteson & James 2014) proposes where, Student's t decides
whether (as Hunter does, Fleming et al. 2023), and what is smaller than what matters is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.compare.statistics import estimators
from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST

WINDOW = 30
"""Commits that the fence is made from, the last ones."""
LEAST_HISTORY = 6
"""Points below which quartiles of their differences mean nothing."""
FENCE_FLOOR = 0.002
"""A quiet series still has this much: below, a difference is nobody's concern."""
REACH = 3.0
"""Interquartile ranges above the third quartile; both as in rustc's performance triage."""
LEVEL = 0.001
"""Of a change point: there is one chance for it at every commit of a series."""
LEAST_SEGMENT = 4
"""Points on either side of a change, for a spread of their own."""
MOST_POINTS = 500
"""Of a series, the last ones: the statistic costs the square of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceResult:
    """The newest point against the one before. ``outside``: it differs by more than neighbours here do."""

    change: float
    """Relative to the point before."""
    bound: float
    """What neighbours differ by at most, as a rule."""
    outside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """The level changed at ``index``: the first point of the new level. ``change``: relative to the level before."""

    index: int
    change: float
    p: float


def fence(series: Sequence[float], *, least: float = STEP_LEAST) -> FenceResult | None:
    """Whether the last of ``series`` lies outside; ``None`` with too short a history. Values are positive.

    The bound is Q3 + 3 IQR of the absolute relative differences of neighbours before it.
    """
    values = _checked(series)
    if values.size < LEAST_HISTORY + 1:
        return None
    before = values[:-1][-WINDOW:]
    low, high = np.quantile(np.abs(np.diff(before) / before[:-1]), (0.25, 0.75))
    bound = max(FENCE_FLOOR, float(high + REACH * (high - low)))
    change = float(values[-1] / values[-2] - 1)
    return FenceResult(change=change, bound=bound, outside=abs(change) > max(bound, least))


def change_points(series: Sequence[float], *, least: float = STEP_LEAST, level: float = LEVEL) -> list[ChangePoint]:
    """Where the level of ``series`` (positive values; the last 500 count) changed by at least ``least``, in order."""
    values = _checked(series)
    skipped = max(0, values.size - MOST_POINTS)
    logs = np.log(values[skipped:])
    distances = np.abs(logs[:, None] - logs[None, :])
    cuts = sorted(_split(logs, distances, 0, logs.size, level))
    while True:  # a level between two cuts may turn out too near to the next: the weakest goes first
        edges = [0, *cuts, logs.size]
        steps = [
            (_step(logs[start:cut], logs[cut:end]), cut)
            for start, cut, end in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        weak = [(abs(change), cut) for (change, p), cut in steps if abs(change) < math.log1p(least) or p >= level]
        if not weak:
            break
        cuts.remove(min(weak)[1])
    return [ChangePoint(index=cut + skipped, change=math.expm1(change), p=p) for (change, p), cut in steps]


def _split(logs: np.ndarray, distances: np.ndarray, start: int, end: int, level: float) -> list[int]:
    """Cuts of one segment, found again in both halves of it."""
    cut = _best_cut(distances[start:end, start:end])
    if cut is None:
        return []
    cut += start
    if _step(logs[start:cut], logs[cut:end])[1] >= level:
        return []
    return [
        *_split(logs, distances, start, cut, level),
        cut,
        *_split(logs, distances, cut, end, level),
    ]


def _best_cut(distances: np.ndarray) -> int | None:
    """argmax of Q(m) = mn/(m+n) [2/(mn) sum d(x,y) - 1/C(m,2) sum d(x,x') - 1/C(n,2) sum d(y,y')]."""
    count = len(distances)
    if count < 2 * LEAST_SEGMENT:
        return None
    upper = np.triu(distances, 1)
    ends_before = np.concatenate(([0.0], np.cumsum(upper.sum(axis=0))))  # pairs whose later point comes before a cut
    starts_after = np.concatenate((np.cumsum(upper.sum(axis=1)[::-1])[::-1], [0.0]))
    first = np.arange(LEAST_SEGMENT, count - LEAST_SEGMENT + 1)
    second = count - first
    across = upper.sum() - ends_before[first] - starts_after[first]
    statistic = (first * second / count) * (
        2 * across / (first * second)
        - 2 * ends_before[first] / (first * (first - 1))
        - 2 * starts_after[first] / (second * (second - 1))
    )
    return int(first[int(np.argmax(statistic))])


def _step(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Change of the mean of logs and its two-sided probability by Student's t with a common spread."""
    change = float(after.mean() - before.mean())
    freedom = before.size + after.size - 2
    within = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    if within <= 0:
        return change, 1.0 if change == 0 else 0.0
    error = math.sqrt(within / freedom * (1 / before.size + 1 / after.size))
    return change, estimators.two_sided_p(change / error, freedom)


def _checked(series: Sequence[float]) -> np.ndarray:
    values = np.asarray(series, float)
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise ValueError("a point of the series is not a positive number")
    return values
