"""Student's t distribution from the standard library: probabilities, quantiles.

A comparison works after a plain installation, and loading scipy's statistics takes longer than a whole
comparison; what is needed of them is this one distribution. The tests hold it to scipy's.
"""

from __future__ import annotations

import math

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


def quantile(probability: float, freedom: int) -> float:
    """The value that lies above ``probability`` (0 < it < 1) of the distribution, by bisection of `upper_p`."""
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
