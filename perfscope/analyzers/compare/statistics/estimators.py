"""The one number that stands for a launch, and which one to take on this machine.

On a machine of its own the median of the steady steps is best. Where others use it too, most steps are disturbed and a
low quantile repeats better: on two shared cores the spread between launches was a third. Which it is, launches
of the base against itself tell before the head has been looked at, so the choice cannot favour a verdict.
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
"""What may stand for a launch, the one that is preferred first."""
BUSY = "fastest"
"""Where others use the machine: they can only make a step longer, so the least disturbed one repeats best."""
BUSY_SHARE = 0.1
"""Of the processors' time, used by other programs while the base was calibrated: above, five pairs cannot tell the
estimators apart (they took the worse one in a third of the simulated comparisons), and `BUSY` is taken outright."""
TAILS = ("mean", "p90", "p99")
"""Shown beside it: what happens in every tenth step only, a median does not see."""
LEAST_STEPS = {"p90": 20, "p99": 200}
"""Steady steps for a quantile to be more than the worst one or two of them."""

CLEARLY_LESS = 0.7
"""Spread, relative to the preferred one's, at which another is taken: from five pairs a ratio of standard deviations
below it is seldom luck, and half as many pairs are then needed."""
LEAST_PAIRS = 4
"""Base/base pairs for a choice; with fewer the preferred one is taken."""


class Chosen(Struct, frozen=True, kw_only=True):
    """An estimator and why. ``spread``: standard deviation of the log ratio of base/base pairs by estimator."""

    name: str
    pairs: int
    spread: Mapping[str, float]
    others_share: float | None = None
    """Of the processors' time that other programs used, where it decided."""

    def reason(self) -> str:
        """One line for a report."""
        if not self.spread:
            return f"{self.name} of the steady steps of a launch (not calibrated: {self.pairs} base/base pairs)"
        spreads = ", ".join(f"{name} {100 * value:.1f}%" for name, value in self.spread.items())
        why = "" if self.others_share is None else f" (other programs used {self.others_share:.0%} of the processors)"
        return (
            f"{self.name} of the steady steps of a launch{why}; "
            f"spread of {self.pairs} base/base pairs by estimator: {spreads}"
        )


def location(times: Sequence[float] | np.ndarray, estimator: str) -> float | None:
    """The estimator of a launch's steady steps, in their unit; ``None`` if they are too few for it.

    ``estimator``: ``mean`` or a name in ``QUANTILES``; ``ValueError`` for others, or where a time is not positive.
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
    """The estimator to use, from pairs of launches of the same program: steady step times of both.

    ``others_share``: of the processors' time, what other programs used meanwhile; ``None``: not known.
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
    """Of the log ratios around zero, which is their true mean: one degree of freedom more than around their own."""
    ratios = np.array([_located(second, estimator) / _located(first, estimator) for first, second in pairs])
    return float(np.sqrt(np.mean(np.log(ratios) ** 2)))


def _located(times: Sequence[float], estimator: str) -> float:
    typical = location(times, estimator)
    assert typical is not None
    return typical


# Student's t distribution from the standard library: probabilities, quantiles.
#
# A comparison works after a plain installation, and loading scipy's statistics takes longer than a whole
# comparison; what is needed of them is this one distribution. The tests hold it to scipy's.


MOST_TERMS = 300
"""Of the continued fraction; it converges in a few dozen for every argument used here."""
PRECISION = 1e-14
_TINY = 1e-300


def two_sided_p(t: float, freedom: int) -> float:
    """Probability of a value as far from zero as ``t`` or farther, with ``freedom`` >= 1 degrees of freedom.

    P(T >= |t| or T <= -|t|) = I_x(v/2, 1/2) with x = v / (v + t^2) (Abramowitz & Stegun 26.7.1).
    """
    _check(freedom)
    if math.isnan(t):
        raise ValueError("t is not a number")
    if math.isinf(t):
        return 0.0
    return regularized_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def upper_p(t: float, freedom: int) -> float:
    """Probability of a value of ``t`` or above."""
    half = two_sided_p(t, freedom) / 2
    return half if t >= 0 else 1 - half


@lru_cache(maxsize=1024)
def quantile(probability: float, freedom: int) -> float:
    """The value that lies above ``probability`` (0 < it < 1) of the distribution, by bisection of `upper_p`.

    Kept, because a comparison asks for the same few levels of confidence for each of its metrics.
    """
    _check(freedom)
    if not 0 < probability < 1:
        raise ValueError(f"a probability between 0 and 1 is needed, not {probability}")
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
    """I_x(a, b) for 0 <= x <= 1, by its continued fraction (Lentz; Abramowitz & Stegun 26.5.8)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast
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
        raise ValueError(f"at least one degree of freedom is needed, not {freedom}")
