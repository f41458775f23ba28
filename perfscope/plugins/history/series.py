"""A metric over stored runs: one series per machine, where its level changed, and between which commits.

Times need statistics (`history`). Metrics that do not depend on chance changed wherever they differ. Nothing here fails
a build.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.analyzers.compare import LEAST, STEP_LEAST, Least, two_sided_p
from perfscope.plugins.history.stored_run import StoredMetric, StoredRun

WINDOW = 30
"""Number of latest commits that determine the fence."""
LEAST_HISTORY = 6
"""Smallest number of points for quartiles of their differences."""
FENCE_FLOOR = 0.002
"""Smallest bound of a quiet series; smaller differences are ignored."""
REACH = 3.0
"""Interquartile ranges above the third quartile, as in rustc's performance triage."""
LEVEL = 0.001
"""Level of a change point. Each commit of a series is a possible change point."""
LEAST_SEGMENT = 4
"""Minimum number of points on each side of a change, so that each has a spread."""
MOST_POINTS = 500
"""Maximum number of latest points of a series: the statistic takes quadratic time."""

ANY = Least(relative=0.0, absolute=0.0)

UNSTEADY = 0.5
"""Share of neighbours that differ above which a count is not a property of the commit (threads, or a cache)."""

LEAST_UNSTEADY = 6
"""Smallest number of points for that share."""

Ordered = Literal["commits", "time"]


# One run per commit: is the newest an outlier, and where did the level of the series change? Reports only, no gates.
#
# A hundred benchmarks at 2% false alarms each are two alarms per commit, and runs days apart differ in more than the
# code.
#
# Change points: the energy statistic of E-divisive (Matteson & James 2014) proposes them, Student's t accepts them (as
# in Hunter, Fleming et al. 2023), and changes smaller than the least that matters are dropped.


class FenceResult(Struct, frozen=True, kw_only=True):
    """The newest point against the point before it. ``outside``: it differs by more than neighbours usually do."""

    change: float
    """Change relative to the point before."""
    bound: float
    """Largest usual difference of neighbours."""
    outside: bool


class ChangePoint(Struct, frozen=True, kw_only=True):
    """The level changed at ``index``, the first point of the new level. ``change``: relative to the level before."""

    index: int
    change: float
    p: float


def fence(series: Sequence[float], *, least: float = STEP_LEAST) -> FenceResult | None:
    """Return whether the last of ``series`` is outside; ``None`` if the history is too short. Values are positive.

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
    """Return where the level of ``series`` (positive values.

    The last 500 count) changed by at least ``least``, in order.
    """
    values = _checked(series)
    skipped = max(0, values.size - MOST_POINTS)
    logs = np.log(values[skipped:])
    distances = np.abs(logs[:, None] - logs[None, :])
    cuts = sorted(_split(logs, distances, 0, logs.size, level))
    while True:  # A level between two cuts may be too near to the next one: drop the weakest first.
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
    """Return the cuts of one segment, and recursively of both halves."""
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
    """Return argmax of Q(m) = mn/(m+n) [2/(mn) sum d(x,y) - 1/C(m,2) sum d(x,x') - 1/C(n,2) sum d(y,y')]."""
    count = len(distances)
    if count < 2 * LEAST_SEGMENT:
        return None
    upper = np.triu(distances, 1)
    ends_before = np.concatenate(([0.0], np.cumsum(upper.sum(axis=0))))  # Pairs whose later point comes before a cut.
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
    """Return the change of the mean of logs and its two-sided probability by Student's t with a common spread."""
    change = float(after.mean() - before.mean())
    freedom = before.size + after.size - 2
    within = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    if within <= 0:
        return change, 1.0 if change == 0 else 0.0
    error = math.sqrt(within / freedom * (1 / before.size + 1 / after.size))
    return change, two_sided_p(change / error, freedom)


def _checked(series: Sequence[float]) -> np.ndarray:
    values = np.asarray(series, float)
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise ValueError("a point of the series is not a positive number")
    return values


class Point(Struct, frozen=True, kw_only=True):
    """One run in a series."""

    run: str
    """Id of the run."""
    created_utc: str
    branch: str | None
    commit: str | None
    dirty: bool
    value: float


class Change(Struct, frozen=True, kw_only=True):
    """Change of level between two neighbours of a series: ``index`` is the first point of the new level."""

    index: int
    before: Point
    after: Point
    old: float
    """Level before: the median of times, the value of exact metrics."""
    new: float
    change: float | None
    """Relative change; ``None`` from zero."""
    p: float | None
    """Probability of chance alone; ``None`` for exact metrics."""
    software: tuple[str, ...]
    """Versions that changed at the same point: ``torch 2.12.0 -> 2.13.0``."""

    @property
    def same_commit(self) -> bool:
        """Whether both neighbours ran the same code, so that the code did not cause the change."""
        alike = self.before.commit is not None and self.before.commit == self.after.commit
        return alike and not self.before.dirty and not self.after.dirty


class Series(Struct, frozen=True, kw_only=True):
    """One metric of one program on one kind of machine. Other arguments count as another program."""

    metric: str
    unit: str
    known: str
    name: str
    """Name of the runs."""
    command: tuple[str, ...]
    machine: str
    """Key of the hardware."""
    hardware: Mapping[str, str]
    points: tuple[Point, ...]
    changes: tuple[Change, ...]
    newest: FenceResult | None
    """The last point against the usual difference of neighbours; ``None`` if too short or exact."""
    ordered: Ordered
    remarks: tuple[str, ...] = ()


class History(Struct, frozen=True, kw_only=True):
    """All requested series, and the runs that are not in them."""

    series: tuple[Series, ...]
    runs: int
    left_out: tuple[str, ...]
    """Reasons for leaving out runs, one sentence each."""
    notes: tuple[str, ...]


def history(
    runs: Iterable[StoredRun], *, metrics: Collection[str] | None = None, order: Mapping[str, int] | None = None
) -> History:
    """Return series over ``runs``, of the given ``metrics`` or all.

    ``order``: commits and their distance to the newest. Runs are ordered by it if it has all commits of a series, else
    by time.
    """
    stored_runs = sorted(runs, key=lambda run: (run.created_utc, run.id))
    usable = [run for run in stored_runs if run.finished]
    left_out = []
    failed = len(stored_runs) - len(usable)
    if failed:
        left_out.append(f"{failed} run{'s' * (failed != 1)} that did not finish, or whose program failed")
    groups: dict[tuple[str, tuple[str, ...], str, str, str], list[tuple[StoredRun, StoredMetric]]] = {}
    for run in usable:
        for metric in run.metrics:
            if metric.value is not None and (metrics is None or metric.name in metrics):
                groups.setdefault((run.name, run.command, metric.name, metric.unit, run.machine), []).append(
                    (run, metric)
                )
    made = [_series(members, order or {}) for members in groups.values()]
    counted = sorted({run.perfscope for run in usable if run.perfscope})
    notes = [f"counted by perfscope {', '.join(counted)}: how something is counted may differ"][: len(counted) > 1]
    machines = Counter((series.name, series.command, series.metric) for series in made)
    if any(count > 1 for count in machines.values()):
        notes.append("runs of several machines are several series: their times are not compared")
    return History(series=tuple(made), runs=len(usable), left_out=tuple(left_out), notes=tuple(notes))


def _series(members: list[tuple[StoredRun, StoredMetric]], order: Mapping[str, int]) -> Series:
    known = all(run.commit in order for run, _ in members)
    if known:
        members = sorted(members, key=lambda pair: (-order[pair[0].commit or ""], pair[0].dirty, pair[0].created_utc))
    runs = [run for run, _ in members]
    first_run, first = members[0]
    points = tuple(
        Point(
            run=run.id,
            created_utc=run.created_utc,
            branch=run.branch,
            commit=run.commit,
            dirty=run.dirty,
            value=metric.value or 0.0,
        )
        for run, metric in members
    )
    exact = first.known == "exact"
    changes, remarks = _exact(points, runs, first.unit) if exact else _timed(points, runs)
    values = [point.value for point in points]
    return Series(
        metric=first.name,
        unit=first.unit,
        known=first.known,
        name=first_run.name,
        command=first_run.command,
        machine=first_run.machine,
        hardware=first_run.hardware,
        points=points,
        changes=changes,
        newest=None if exact or min(values) <= 0 else fence(values),
        ordered="commits" if known else "time",
        remarks=remarks,
    )


def _timed(points: Sequence[Point], runs: Sequence[StoredRun]) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Find changes by the statistic; between two changes the level is the median."""
    values = [point.value for point in points]
    if min(values) <= 0:
        return (), ("a time is not positive, so no changes were searched",)
    steps = change_points(values, least=STEP_LEAST)
    edges = [0, *(change_point.index for change_point in steps), len(values)]
    levels = [_median(values[start:end]) for start, end in itertools.pairwise(edges)]
    return tuple(
        _change(points, runs, change_point.index, old=levels[index], new=levels[index + 1], p=change_point.p)
        for index, change_point in enumerate(steps)
    ), ()


def _exact(points: Sequence[Point], runs: Sequence[StoredRun], unit: str) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Find neighbours that differ by a significant amount; none if they differ from run to run all the time."""
    least = LEAST.get(unit, ANY)  # A later perfscope may have more units.
    values = [point.value for point in points]
    cuts = []
    for index, (old, new) in enumerate(itertools.pairwise(values), start=1):
        if new != old and abs(new - old) >= max(least.absolute, least.relative * abs(old)):
            cuts.append(index)
    if len(values) >= LEAST_UNSTEADY and len(cuts) > UNSTEADY * (len(values) - 1):
        return (), (
            f"it differs between {len(cuts)} of {len(values) - 1} neighbours, so it is not a property of a commit",
        )
    return tuple(_change(points, runs, cut, old=values[cut - 1], new=values[cut], p=None) for cut in cuts), ()


def _change(
    points: Sequence[Point], runs: Sequence[StoredRun], index: int, *, old: float, new: float, p: float | None
) -> Change:
    before, after = runs[index - 1].software, runs[index].software
    moved = tuple(
        f"{name} {before[name]} -> {after[name]}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    )
    return Change(
        index=index,
        before=points[index - 1],
        after=points[index],
        old=old,
        new=new,
        change=new / old - 1 if old else None,
        p=p,
        software=moved,
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
