"""Cause of a verdict on launches: profiled launches compared, one pair in full, all pairs by their numbers.

The pair with the median change of its step is compared in full. Exact metrics use the values of every pair, so a metric
that differs between launches of one commit has no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.change import time_change
from perfscope.analyzers.compare.runs.comparison import Comparison, compare
from perfscope.analyzers.compare.runs.structure import ExactValues, exact_values, structure_of
from perfscope.analyzers.compare.statistics.verdict import LEAST_PAIRS, judge_many
from perfscope.analyzers.readers import load_all
from perfscope.model.documents.comparison import Kernel
from perfscope.model.errors import DataError, UsageError
from perfscope.model.trace import Trace

RunPair = tuple[Path, Path]
"""Run folders of base and head."""

Read = Callable[[Path], Sequence[Trace]]


class Profiles(Struct, frozen=True, kw_only=True):
    """Result of the profiled pairs. ``lost``: why pairs are missing, one line per pair."""

    comparison: Comparison | None = None
    """Comparison of the median pair, with exact metrics judged over all pairs; ``None`` if no pair could be compared.
    """
    kernels: tuple[Kernel, ...] = ()
    used: int = 0
    """Number of pairs that could be read."""
    lost: tuple[str, ...] = ()


class _Numbers(Struct, frozen=True, kw_only=True):
    """Numbers of a pair, kept after its traces are freed."""

    runs: RunPair
    exact: tuple[ExactValues, ExactValues]
    step: tuple[float, float]
    parts: Mapping[str, tuple[float, float]]


def compare_profiles(pairs: Sequence[RunPair], lost: Sequence[str] = (), *, read: Read = load_all) -> Profiles:
    """Compare profiled pairs of launches. ``lost``: reasons of launches that left no runs.

    A pair that cannot be read adds its reason. Traces are in memory for one pair at a time.
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
    comparison = compare(*map(read, numbers[middle].runs))
    if len(numbers) > 1:
        built = structure_of(
            [pair.exact[0] for pair in numbers],
            [pair.exact[1] for pair in numbers],
            middle=(middle, middle),
            lines={program.base_fingerprint: program.lines for program in comparison.programs},
        )
        comparison = replace(comparison, exact=built.metrics)
    return Profiles(comparison=comparison, kernels=tuple(_kernels(numbers)), used=len(numbers), lost=tuple(reasons))


def _numbers(runs: RunPair, read: Read) -> _Numbers:
    base, head = map(read, runs)
    time = time_change(base, head)
    parts: dict[str, tuple[float, float]] = {}
    for part in time.median.parts if time is not None else ():
        if part.kind != "idle":
            name = part.key().name()
            total = parts.get(name, (0.0, 0.0))
            parts[name] = (total[0] + part.base.ns, total[1] + part.head.ns)
    step = (0.0, 0.0) if time is None else (float(time.median.base_ns), float(time.median.head_ns))
    return _Numbers(runs=runs, exact=(exact_values(base), exact_values(head)), step=step, parts=parts)


def _without_folder(text: str, runs: RunPair) -> str:
    """Return the reason without our temporary folder below the user's folder."""
    for run in runs:
        text = text.replace(str(run), run.name)
    return text


def _middle(numbers: Sequence[_Numbers]) -> int:
    """Return the index of the pair with the median change of its step."""
    changes = [math.log(pair.step[1] / pair.step[0]) if min(pair.step) > 0 else 0.0 for pair in numbers]
    return sorted(range(len(numbers)), key=changes.__getitem__)[(len(numbers) - 1) // 2]


def _kernels(numbers: Sequence[_Numbers]) -> list[Kernel]:
    """Return ops and kernels by name over the pairs; empty if there are too few pairs for a probability."""
    if len(numbers) < LEAST_PAIRS:
        return []
    names = dict.fromkeys(name for pair in numbers for name in pair.parts)
    none = (0.0, 0.0)
    sides = {name: tuple([pair.parts.get(name, none)[arm] for pair in numbers] for arm in (0, 1)) for name in names}
    step = tuple([pair.step[arm] for pair in numbers] for arm in (0, 1))
    return judge_many({name: (base, head) for name, (base, head) in sides.items()}, (step[0], step[1]))
