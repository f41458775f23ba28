"""The cause behind a verdict on launches: their profiled sisters compared, one pair in full, all of them in numbers.

Of several pairs the one in the middle by the change of its step is compared in full. Exact metrics take the values of
every pair, so that one which differs between launches of one commit concludes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfscope.analyzers.compare.runs.change import time_change
from perfscope.analyzers.compare.runs.comparison import Comparison, compare
from perfscope.analyzers.compare.runs.structure import NEUTRAL, NO_STEPS, ExactMetric, structure
from perfscope.analyzers.compare.statistics.verdict import LEAST_PAIRS, compare_exact, judge_many
from perfscope.analyzers.readers.load import load
from perfscope.model.documents.comparison import Kernel
from perfscope.model.errors import DataError, UsageError
from perfscope.model.trace import Trace

RunPair = tuple[Path, Path]
"""Run folders of base and head."""

Read = Callable[[Path], Sequence[Trace]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """What the profiled pairs say. ``lost``: why a pair says nothing, one line each."""

    comparison: Comparison | None = None
    """Of the pair in the middle, its exact metrics judged over all pairs; ``None``: no pair could be compared."""
    kernels: tuple[Kernel, ...] = ()
    used: int = 0
    """Pairs that could be read."""
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """A pair in numbers: what is left when its traces are gone."""

    runs: RunPair
    step: tuple[float, float]
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    exact: dict[str, tuple[float, float]] = field(default_factory=dict)


def compare_profiles(pairs: Sequence[RunPair], lost: Sequence[str] = (), *, read: Read = load) -> Profiles:
    """Compare profiled pairs of launches; ``lost``: what became of those that left no runs.

    A pair that cannot be read is one more of those. Its traces are in memory one pair at a time.
    """
    reasons = list(lost)
    numbers = []
    for runs in pairs:
        try:
            numbers.append(_numbers(runs, read))
        except (DataError, UsageError) as error:
            reasons.append(_without_folder(str(error), runs))
    if not numbers:
        return Profiles(lost=tuple(reasons))
    middle = _middle(numbers)
    comparison = compare(read(middle.runs[0]), read(middle.runs[1]))
    if len(numbers) > 1:
        comparison = replace(
            comparison, exact=tuple(_over_all(exact_metric, numbers) for exact_metric in comparison.exact)
        )
    return Profiles(comparison=comparison, kernels=tuple(_kernels(numbers)), used=len(numbers), lost=tuple(reasons))


def _numbers(runs: RunPair, read: Read) -> _Numbers:
    base, head = read(runs[0]), read(runs[1])
    time = time_change(base, head)
    parts: dict[str, tuple[float, float]] = {}
    for part in time.median.parts if time is not None else ():
        if part.kind != "idle":
            name = part.key().name()
            total = parts.get(name, (0.0, 0.0))
            parts[name] = (total[0] + part.base.ns, total[1] + part.head.ns)
    exact = {
        metric.result.name: (float(metric.result.base), float(metric.result.head))
        for metric in structure(base, head).metrics
        if isinstance(metric.result.base, int | float) and isinstance(metric.result.head, int | float)
    }
    step = (0.0, 0.0) if time is None else (float(time.median.base_ns), float(time.median.head_ns))
    return _Numbers(runs=runs, step=step, parts=parts, exact=exact)


def _without_folder(text: str, runs: RunPair) -> str:
    """The reason without the folder of our own, which lies below the user's."""
    for run in runs:
        text = text.replace(str(run), run.name)
    return text


def _middle(numbers: Sequence[_Numbers]) -> _Numbers:
    def change(numbers: _Numbers) -> float:
        return math.log(numbers.step[1] / numbers.step[0]) if min(numbers.step) > 0 else 0.0

    return sorted(numbers, key=change)[(len(numbers) - 1) // 2]


def _over_all(metric: ExactMetric, numbers: Sequence[_Numbers]) -> ExactMetric:
    """The metric judged over the values of all pairs that have it."""
    result = metric.result
    values = [pair.exact[result.name] for pair in numbers if result.name in pair.exact]
    if metric.neutral or NO_STEPS in result.remarks or NEUTRAL in result.remarks or not values:
        return metric
    judged = compare_exact(
        result.name,
        [base for base, _ in values],
        [head for _, head in values],
        unit=result.unit,
        better=result.better,
    )
    return replace(metric, result=replace(judged, remarks=tuple(dict.fromkeys((*judged.remarks, *result.remarks)))))


def _kernels(numbers: Sequence[_Numbers]) -> list[Kernel]:
    """Ops and kernels by name over the pairs; none where there are too few pairs for a probability."""
    if len(numbers) < LEAST_PAIRS:
        return []
    names = dict.fromkeys(name for pair in numbers for name in pair.parts)
    none = (0.0, 0.0)
    sides = {name: tuple([pair.parts.get(name, none)[arm] for pair in numbers] for arm in (0, 1)) for name in names}
    step = tuple([pair.step[arm] for pair in numbers] for arm in (0, 1))
    return judge_many({name: (base, head) for name, (base, head) in sides.items()}, (step[0], step[1]))
