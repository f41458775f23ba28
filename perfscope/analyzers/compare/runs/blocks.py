"""Two single captures: an interval that allows for steps resembling their neighbours. It never fails a build.

One launch on each side says nothing of how launches differ. The moving-block bootstrap (Kuensch 1989) covers what
steps of one launch have in common with the steps before them; it cannot cover the layout, clocks and neighbours that
a whole launch has in common. Simulated, it calls a change where there is none in more than half of such comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.compare.statistics import estimators
from perfscope.analyzers.compare.statistics.sequential import Better, Verdict
from perfscope.analyzers.compare.statistics.series import steady_part
from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST, MetricResult

RESAMPLES = 1000
MOST_STEPS = 2000
"""Of a capture, the last ones: a resample of more costs time and tells nothing more of the next launch."""
MOST_AT_ONCE = 1 << 18
"""Values of the resamples that are in memory together."""
LEAST_STEPS = 5
"""Steady steps for an interval: three profiled steps are enough for a picture, not for a spread."""
LOW_CONFIDENCE = "one launch on each side: differences between launches are not in the interval, so it fails no build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """How much consecutive steps resemble each other. ``effective``: independent steps that would say as much."""

    correlation: float
    """Between a step and the next."""
    effective: float
    block: int
    """Steps of a block."""


def resemblance(values: np.ndarray) -> Resemblance:
    """From lag-1 correlation phi: n_eff = n (1 - phi) / (1 + phi), blocks of n^(1/3) (1 + phi) / (1 - phi) steps.

    phi is that of the ranks, which a few interrupted steps leave alone, with its bias taken out (Kendall 1954).
    """
    count = values.size
    centred = np.argsort(np.argsort(values, kind="stable"), kind="stable") - (count - 1) / 2
    power = float(centred @ centred) if np.ptp(values) else 0.0
    correlation = float(centred[1:] @ centred[:-1]) / power if power > 0 else 0.0
    correlation += (1 + 3 * correlation) / count if power > 0 else 0.0
    # A slope makes any series look perfectly correlated; no fewer than two independent values are left.
    correlation = min(max(correlation, 0.0), 1 - 4 / (count + 2) if count > 2 else 0.0)
    memory = (1 + correlation) / (1 - correlation)
    block = min(max(1, math.ceil(count ** (1 / 3) * memory)), max(1, count // 2))
    return Resemblance(correlation=correlation, effective=count / memory, block=block)


def from_single_captures(
    name: str,
    base: Sequence[float],
    head: Sequence[float],
    *,
    unit: str = "ns",
    better: Better = "lower",
    least: float = STEP_LEAST,
    seed: int = 0,
) -> MetricResult:
    """Medians of two launches' steps, in order, warm-up included. 95% interval by blocks; low confidence.

    Too few steps, or times that are not positive, are inconclusive with the reason.
    """
    steady, problems = [], []
    for which, times in (("base", base), ("head", head)):
        part = steady_part(times)
        if part.problem is not None:
            problems.append(f"{which}: {part.problem}")
        elif part.kept < LEAST_STEPS:
            problems.append(f"{which}: {part.kept} steady steps are too few for an interval, {LEAST_STEPS} are needed")
        steady.append(np.asarray(times, float)[part.dropped :][-MOST_STEPS:])
    typical = [float(np.median(values)) if values.size and np.all(values > 0) else None for values in steady]
    effect = low = high = None
    if typical[0] is not None and typical[1] is not None:
        effect = typical[1] / typical[0] - 1
    verdict: Verdict = "inconclusive"
    remarks = [LOW_CONFIDENCE, *problems]
    if not problems:
        rng = np.random.default_rng(seed)
        alike = [resemblance(values) for values in steady]
        centre = math.log(typical[1] / typical[0]) if typical[0] and typical[1] else 0.0
        half = _half_width(steady, alike, rng)
        low, high = centre - half, centre + half
        verdict = _verdict(low, high, effect or 0.0, least, better)
        low, high = math.expm1(low), math.expm1(high)
        remarks.append(
            "steps that say as much if they were independent: "
            + ", ".join(
                f"{one.effective:.0f} of {values.size} in {which}"
                for which, values, one in zip(("base", "head"), steady, alike, strict=True)
            )
        )
    return MetricResult(
        name=name,
        unit=unit,
        better=better,
        verdict=verdict,
        known="single captures",
        base=typical[0],
        head=typical[1],
        effect=effect,
        low=low,
        high=high,
        level=None if low is None else 0.95,
        estimator="median of the steady steps",
        least=least,
        remarks=tuple(remarks),
    )


def _half_width(steady: Sequence[np.ndarray], alike: Sequence[Resemblance], rng: np.random.Generator) -> float:
    """Half of the 95% interval of the log ratio: the bootstrap's standard error times Student's t.

    Percentiles of few, long blocks are too near to each other: t with the degrees of freedom of the independent steps,
    and the variance that blocks of b of n steps cannot show (n / (n - b)), make up for it.
    """
    variance = 0.0
    for values, one in zip(steady, alike, strict=True):
        logs = np.log(_medians(values, one.block, rng))
        variance += float(logs.var(ddof=1)) * values.size / max(values.size - one.block, 1)
    freedom = max(1, math.floor(min(one.effective for one in alike)) - 1)
    return estimators.quantile(0.975, freedom) * math.sqrt(variance)


def _medians(values: np.ndarray, block: int, rng: np.random.Generator) -> np.ndarray:
    """Medians of resamples made of blocks of consecutive values."""
    per_sample = math.ceil(values.size / block)
    offsets = np.arange(block)
    chunk = max(1, MOST_AT_ONCE // values.size)
    medians = []
    for first in range(0, RESAMPLES, chunk):
        starts = rng.integers(0, values.size - block + 1, (min(chunk, RESAMPLES - first), per_sample))
        chosen = (starts[:, :, None] + offsets).reshape(len(starts), -1)[:, : values.size]
        medians.append(np.median(values[chosen], axis=1))
    return np.concatenate(medians)


def _verdict(low: float, high: float, effect: float, least: float, better: Better) -> Verdict:
    bound = math.log1p(least)
    if (low > 0 or high < 0) and abs(math.log1p(effect)) >= bound:
        return "regression" if (effect > 0) is (better == "lower") else "improvement"
    return "no change" if -bound < low and high < bound else "inconclusive"
