"""Estimators: the one number that represents a launch, and the choice of estimator for this machine.

On an exclusive machine, the median of the steady steps is best. On a shared machine most steps are disturbed, and a low
quantile repeats better: on two shared cores the spread between launches was a third. Launches of the base against
itself decide before the head is inspected, so the choice cannot favour a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

MEAN = "mean"
QUANTILES: Mapping[str, float] = {"fastest": 0.0, "p10": 0.10, "p25": 0.25, "median": 0.50, "p90": 0.90, "p99": 0.99}
CANDIDATES = ("median", "p25", "p10", "fastest")
"""Estimators of a launch, the preferred one first."""
BUSY = "fastest"
"""Estimator on a shared machine: other programs only make a step longer, so the least disturbed step repeats best."""
BUSY_SHARE = 0.1
"""Share of the processors' time used by other programs during calibration above which `BUSY` is used at once: five
pairs cannot tell the estimators apart (they chose the worse one in a third of the simulated comparisons).
"""
TAILS = ("mean", "p90", "p99")
"""Estimators that are shown too, because a median does not see effects in every tenth step only."""
LEAST_STEPS = {"p90": 20, "p99": 200}
"""Smallest number of steady steps for a quantile to be more than the worst one or two of them."""

CLEARLY_LESS = 0.7
"""Spread relative to the preferred estimator at which another one is used. From five pairs, a ratio of standard
deviations below it is seldom luck, and half as many pairs are then needed.
"""
LEAST_PAIRS = 4
"""Smallest number of base/base pairs for a choice; with fewer, the preferred estimator is used."""

MOST_TERMS = 300
"""Maximum number of terms of the continued fraction; it converges in a few dozen for all arguments used here."""

PRECISION = 1e-14

_TINY = 1e-300


class Chosen(Struct, frozen=True, kw_only=True):
    """An estimator and the reason for it.

    ``spread``: standard deviation of the log ratio of base/base pairs by estimator.
    """

    name: str
    pairs: int
    spread: Mapping[str, float]
    others_share: float | None = None
    """Share of the processors' time used by other programs, if it decided."""

    def reason(self) -> str:
        """Return one line for a report."""
        if not self.spread:
            return f"{self.name} of the steady steps of a launch (not calibrated: {self.pairs} base/base pairs)"
        spreads = ", ".join(f"{name} {100 * value:.1f}%" for name, value in self.spread.items())
        why = "" if self.others_share is None else f" (other programs used {self.others_share:.0%} of the processors)"
        return (
            f"{self.name} of the steady steps of a launch{why}; "
            f"spread of {self.pairs} base/base pairs by estimator: {spreads}"
        )


def location(times: Sequence[float] | np.ndarray, estimator: str) -> float | None:
    """Return the estimate from a launch's steady steps, in their unit; ``None`` if they are too few.

    ``estimator``: ``mean`` or a name in ``QUANTILES``; ``ValueError`` for others, or if a time is not positive.
    """
    values = np.asarray(times, float)
    if values.size and (not np.all(np.isfinite(values)) or np.any(values <= 0)):
        raise ValueError("a step's time is not a positive number")
    if values.size < max(1, LEAST_STEPS.get(estimator, 1)):
        return None
    if estimator == MEAN:
        return float(values.mean())
    if estimator not in QUANTILES:
        raise ValueError(f"{estimator}: not one of {', '.join((MEAN, *QUANTILES))}")
    return float(np.quantile(values, QUANTILES[estimator]))


def choose(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], *, others_share: float | None = None) -> Chosen:
    """Return the estimator to use, from the steady step times of pairs of launches of the same program.

    ``others_share``: share of the processors' time used by other programs meanwhile; ``None`` if unknown.
    """
    usable = [pair for pair in pairs if len(pair[0]) and len(pair[1])]
    if len(usable) < LEAST_PAIRS:
        return Chosen(name=CANDIDATES[0], pairs=len(usable), spread={})
    spread = {name: _spread(usable, name) for name in CANDIDATES}
    if others_share is not None and others_share > BUSY_SHARE:
        return Chosen(name=BUSY, pairs=len(usable), spread=spread, others_share=others_share)
    best = min(CANDIDATES, key=lambda name: spread[name])
    chosen = best if spread[best] < CLEARLY_LESS * spread[CANDIDATES[0]] else CANDIDATES[0]
    return Chosen(name=chosen, pairs=len(usable), spread=spread)


def _spread(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], estimator: str) -> float:
    """Return the spread of log ratios around zero, their true mean, which has one more degree of freedom."""
    ratios = np.array([_located(second, estimator) / _located(first, estimator) for first, second in pairs])
    return float(np.sqrt(np.mean(np.log(ratios) ** 2)))


def _located(times: Sequence[float], estimator: str) -> float:
    typical = location(times, estimator)
    assert typical is not None
    return typical


# Student's t distribution from the standard library: probabilities and quantiles.
#
# A comparison works after a plain installation, and loading scipy's statistics takes longer than a whole comparison.
# This is the only distribution that is needed; the tests compare it with scipy's.


def two_sided_p(t: float, freedom: int) -> float:
    """Return the probability of a value at least as far from zero as ``t``, with ``freedom`` >= 1 degrees of freedom.

    P(T >= |t| or T <= -|t|) = I_x(v/2, 1/2) with x = v / (v + t^2) (Abramowitz & Stegun 26.7.1).
    """
    _check(freedom)
    if math.isnan(t):
        raise ValueError("t is not a number")
    if math.isinf(t):
        return 0.0
    return regularized_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def upper_p(t: float, freedom: int) -> float:
    """Return the probability of a value of ``t`` or more."""
    half = two_sided_p(t, freedom) / 2
    return half if t >= 0 else 1 - half


@lru_cache(maxsize=1024)
def quantile(probability: float, freedom: int) -> float:
    """Return the value above ``probability`` (0 < it < 1) of the distribution, by bisection of `upper_p`.

    Cached, because a comparison uses the same few levels of confidence for each of its metrics.
    """
    _check(freedom)
    if not 0 < probability < 1:
        raise ValueError(f"the probability must be between 0 and 1, not {probability}")
    if probability == 0.5:
        return 0.0
    if probability < 0.5:
        return -quantile(1 - probability, freedom)
    tail = 1 - probability
    low, high = 0.0, 1.0
    while upper_p(high, freedom) > tail:
        low, high = high, high * 2
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        if upper_p(middle, freedom) > tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def regularized_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b) for 0 <= x <= 1 by its continued fraction (Lentz; Abramowitz & Stegun 26.5.8)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):  # The fraction converges fast here.
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    total = d
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _away_from_zero(1 + even * d)
        c = _away_from_zero(1 + even / c)
        total *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _away_from_zero(1 + odd * d)
        c = _away_from_zero(1 + odd / c)
        total *= d * c
        if abs(d * c - 1) < PRECISION:
            break
    return total


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _check(freedom: int) -> None:
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be 1 or more, not {freedom}")
