"""The effect of a change from pairs of launches: log ratios, their mean, interval and probability.

The unit is a launch. Steps of one launch share its memory layout, its clocks and its neighbours, so a test on steps
would count dependent values as independent evidence (docs/compare.md has the false alarms).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.statistics import estimators

MOST_EXACT = 16
"""Number of pairs up to which all sign flips are computed (65,536 sums)."""
RANDOM_FLIPS = 20_000
"""Random sign flips for more pairs, with a fixed seed."""
LEAST_FOR_MODES = 8
TWO_MODES = ((8, 7.0), (10, 6.1), (15, 5.0), (20, 4.5), (30, 3.9))
"""Number of pairs, and the distance of two groups' means in units of their pooled spread from which they are two
groups. The best split of as many normal values stays below it in 99 of 100 samples (simulated; heavier tails, t with 3
degrees: 97).
"""
LEAST_IN_MODE = 2
LEAST_APART = 0.005
"""Smallest separation (log ratio) at which two groups are reported; values that differ in their last digits are closer.
"""

Verdict = Literal["regression", "improvement", "no change", "inconclusive"]

Better = Literal["lower", "higher"]

LOOKS = (6, 10, 15, 20, 30, 45, 60)
"""Number of pairs at each look; fewer than six cannot reach the level with a usual spread."""

MOST_PAIRS = LOOKS[-1]

EARLY_LOOK = 4
"""Number of pairs at the additional first look of `perfscope try`. It gives an answer only if the launches of the two
sides do not overlap (`are_apart`), because equal ratios are frequent if a launch has one of two levels: with three
pairs 3% of comparisons without a change would show one (tests/compare/test_early_look.py).
"""

LEVELS = (0.05, 0.028, 0.021, 0.0174, 0.0144, 0.0124, 0.0109)
"""Level of each look by the number of looks; 5% of comparisons without a change show one at some look. From a million
simulated comparisons of t tests at ``LOOKS``, rounded down. Pocock's own constants (0.0158 for five) are for normal
values and equal steps; with t and these looks, 0.0158 has 5.4% false alarms.
"""

EARLY_LEVELS = (0.05, 0.0296, 0.0206, 0.0163, 0.0138, 0.0117, 0.0102, 0.0092)
"""The same for looks that begin with `EARLY_LOOK`."""

SECOND_BATCH_LEVEL = 0.1
"""Level of a look from which a possible change needs a second batch, which decides."""

CONFIRM_LEVEL = 0.0125
"""Level of both batches together. A simulation over recorded launches (``benchmarks/compare_power.py``,
docs/compare.md) chose it with ``SECOND_BATCH_LEVEL``: at most 2% false alarms. The second batch need not be significant
by itself; that condition cost half of the power if pairs differ by a third.
"""

LEAST_CONFIRMING = 6

MOST_NEEDED = 10_000
"""Maximum number of further pairs that is worth reporting."""


class Effect(Struct, frozen=True, kw_only=True):
    """Head against base over ``pairs`` pairs. Ratios are given minus one: 0.03 is 3% more than the base.

    ``low``/``high``: the interval of level 1 - ``alpha``; ``None`` with fewer than two pairs, as are the probabilities,
    so that ``effect`` alone proves nothing.
    """

    pairs: int
    effect: float
    """exp(mean of log ratios) - 1."""
    spread: float | None
    """Standard deviation of the log ratios."""
    low: float | None
    high: float | None
    p: float | None
    """Two-sided, by Student's t on the log ratios; by sign flips if all ratios are equal."""
    p_sign_flip: float | None
    """The same without an assumed distribution: share of sign flips of the log ratios whose mean is as far from 0."""
    robust: float
    """Hodges-Lehmann: exp(median of the means of all pairs of ratios) - 1."""
    two_groups: tuple[float, float] | None
    """Effects of the two groups of pairs, or ``None`` if there is one group."""

    def interval(self, alpha: float) -> tuple[float, float] | None:
        """Return the interval of level 1 - ``alpha``, or ``None`` with fewer than two pairs."""
        if self.spread is None:
            return None
        half = estimators.quantile(1 - alpha / 2, self.pairs - 1) * self.spread / math.sqrt(self.pairs)
        centre = math.log1p(self.effect)
        return math.expm1(centre - half), math.expm1(centre + half)


def log_ratios(base: Sequence[float], head: Sequence[float]) -> np.ndarray:
    """Return ln(head / base) per pair. ``ValueError`` unless they are pairs of positive finite numbers."""
    before, after = np.asarray(base, float), np.asarray(head, float)
    if before.shape != after.shape or before.ndim != 1:
        raise ValueError(f"both sides must have equally many launches, not {before.size} and {after.size}")
    for values in (before, after):
        if not np.all(np.isfinite(values)) or np.any(values <= 0):
            raise ValueError("a launch's time is not a positive number")
    return np.asarray(np.log(after / before))


def effect_of(ratios: np.ndarray, *, alpha: float = 0.05) -> Effect:
    """Return the effect of one or more log ratios."""
    count = ratios.size
    if not count:
        raise ValueError("there is no pair")
    mean = float(ratios.mean())
    spread = low = high = p = flipped = None
    if count > 1:
        spread = float(ratios.std(ddof=1))
        flipped = sign_flip_p(ratios)
        # All ratios are equal: there is no spread to divide by, and a certain result would claim too much.
        p = estimators.two_sided_p(mean / (spread / math.sqrt(count)), count - 1) if spread > 0 else flipped
        half = estimators.quantile(1 - alpha / 2, count - 1) * spread / math.sqrt(count)
        low, high = math.expm1(mean - half), math.expm1(mean + half)
    return Effect(
        pairs=count,
        effect=math.expm1(mean),
        spread=spread,
        low=low,
        high=high,
        p=p,
        p_sign_flip=flipped,
        robust=math.expm1(hodges_lehmann(ratios)),
        two_groups=two_groups(ratios),
    )


def sign_flip_p(ratios: np.ndarray) -> float:
    """Return the two-sided probability if each ratio could as well have the other sign; exact for few pairs."""
    count = ratios.size
    if count <= MOST_EXACT:
        sums = np.zeros(1)
        for value in ratios:
            sums = np.concatenate((sums + value, sums - value))
        extra = 0
    else:
        sums = _signs(count) @ ratios
        extra = 1  # The observed flip is one of the possible flips.
    observed = abs(float(ratios.sum()))
    tolerance = 1e-12 * float(np.abs(ratios).sum())
    return float((np.count_nonzero(np.abs(sums) >= observed - tolerance) + extra) / (sums.size + extra))


@functools.cache
def _signs(count: int) -> np.ndarray:
    return np.where(np.random.default_rng(count).random((RANDOM_FLIPS, count)) < 0.5, -1.0, 1.0)


def hodges_lehmann(ratios: np.ndarray) -> float:
    """Return the median of the means of all pairs of ratios, also with themselves (Walsh averages).

    Robust to outliers.
    """
    row, column = np.triu_indices(ratios.size)
    return float(np.median((ratios[row] + ratios[column]) / 2))


def two_groups(ratios: np.ndarray) -> tuple[float, float] | None:
    """Return the effects of two separate groups of pairs, lower first: perhaps another algorithm was picked.

    The split has the least squares within the groups. They count if their means are farther apart than in `TWO_MODES`.
    """
    if ratios.size < LEAST_FOR_MODES:
        return None
    ordered = np.sort(ratios)
    best: tuple[float, int] | None = None
    for cut in range(LEAST_IN_MODE, ordered.size - LEAST_IN_MODE + 1):
        within = float(ordered[:cut].var() * cut + ordered[cut:].var() * (ordered.size - cut))
        if best is None or within < best[0]:
            best = within, cut
    assert best is not None
    within, cut = best
    below, above = float(ordered[:cut].mean()), float(ordered[cut:].mean())
    spread = math.sqrt(within / (ordered.size - 2))
    least = float(np.interp(ratios.size, [count for count, _ in TWO_MODES], [apart for _, apart in TWO_MODES]))
    if above - below <= max(least * spread, LEAST_APART):
        return None
    return math.expm1(below), math.expm1(above)


# When to look, the level of each look, when the answer is settled, and how many more pairs would settle it.
#
# Looking after every pair and stopping at the first p < 0.05 finds a change in a quarter of all comparisons of a
# program with itself. A few looks, each at the same lower level (Pocock, Biometrika 64, 1977), keep the 5%.


def looks_for(pairs: int, *, early: bool = False) -> tuple[int, ...]:
    """Return the looks of a comparison of at most ``pairs`` pairs, the last at ``pairs``.

    ``early``: with a look at `EARLY_LOOK`. ``ValueError`` unless 2 to 60.

    The looks, each at the level `level_for`, are a group sequential test with Pocock's boundary (Pocock 1977). The
    intervals of that level are repeated confidence intervals (Jennison & Turnbull, JRSS B 51, 1989): together they
    contain the true effect at all looks in 95 of 100 comparisons, whatever the reason for the end.
    """
    if not 2 <= pairs <= MOST_PAIRS:
        raise ValueError(f"pairs must be 2 to {MOST_PAIRS}, not {pairs}")
    looks = (EARLY_LOOK, *LOOKS) if early else LOOKS
    return (*(look for look in looks if look < pairs), pairs)


def are_apart(base: Sequence[float], head: Sequence[float]) -> bool:
    """Return whether all launches of one side are faster than all launches of the other (times in any unit).

    For launches that differ by chance alone it is rare: 2 in 70 with four of each side.
    """
    return max(head) < min(base) or max(base) < min(head)


def level_for(looks: int, *, early: bool = False) -> float:
    """Return the level of each of ``looks`` looks; ``early``: the first is at `EARLY_LOOK`."""
    levels = EARLY_LEVELS if early else LEVELS
    if not 1 <= looks <= len(levels):
        raise ValueError(f"looks must be 1 to {len(levels)}, not {looks}")
    return levels[looks - 1]


def judge(effect: Effect, *, alpha: float, least: float, better: Better = "lower") -> Verdict:
    """Return the verdict of one look at level ``alpha``.

    ``least``: the smallest relative change that matters, such as 0.02.

    A regression or improvement is significant and at least ``least`` large. "No change" is shown, not assumed: two
    one-sided tests (Schuirmann 1987) at ``alpha`` each put the effect within ``least``.
    """
    if not least > 0:
        raise ValueError(f"the least change that matters must be above 0, not {least}")
    if effect.p is None or effect.spread is None:
        return "inconclusive"
    larger = effect.effect > 0
    if effect.p < alpha and abs(math.log1p(effect.effect)) >= math.log1p(least):
        return "regression" if larger is (better == "lower") else "improvement"
    if is_equivalent(effect, alpha=alpha, least=least):
        return "no change"
    return "inconclusive"


def is_worse(effect: Effect, *, alpha: float, least: float) -> bool:
    """Return whether head is certainly slower, or larger, by ``least`` or more: ``judge`` has a regression."""
    return judge(effect, alpha=alpha, least=least) == "regression"


def is_equivalent(effect: Effect, *, alpha: float, least: float) -> bool:
    """Return whether the interval of level 1 - 2 ``alpha`` is within ``least``, the same factor in both directions."""
    interval = effect.interval(2 * alpha)
    if interval is None:
        return False
    bound = math.log1p(least)
    return -bound < math.log1p(interval[0]) and math.log1p(interval[1]) < bound


def pairs_needed(effect: Effect, *, least: float, alpha: float = 0.05) -> int | None:
    """Return the number of pairs after which the interval is at most as wide as ``least``; ``None`` if unknown.

    The least n with t_{n-1} s / sqrt(n) <= ln(1 + least) / 2, from the spread s of the pairs so far. The spread is
    itself an estimate: with ten pairs it is usually off by a quarter. ``None`` also for more than ``MOST_NEEDED``.
    """
    if effect.spread is None:
        return None
    widths = effect.spread / (math.log1p(least) / 2)

    def enough(count: int) -> bool:
        return (estimators.quantile(1 - alpha / 2, count - 1) * widths) ** 2 <= count

    if not enough(MOST_NEEDED):
        return None
    low, high = 2, MOST_NEEDED
    while low < high:  # The quantile falls with the count, so a sufficient number stays sufficient.
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def could_settle(effect: Effect, *, pairs: int, alpha: float, least: float) -> bool:
    """Return whether ``pairs`` pairs in total may give an answer at level ``alpha``.

    It assumes that further pairs are like those so far, or that their mean is one standard error away in either
    direction. With the mean alone, one in six gains of a quarter was given up that all pairs would have shown
    (docs/try.md). A comparison may end early if the answer is no: an answer that is never given is not a false alarm.
    """
    if effect.spread is None:
        return True
    mean, error = math.log1p(effect.effect), effect.spread / math.sqrt(effect.pairs)
    for shift in (0.0, -error, error):
        projected = replace(effect, pairs=pairs, effect=math.expm1(mean + shift))
        interval = projected.interval(alpha)
        excludes_zero = interval is not None and not interval[0] <= 0 <= interval[1]
        if excludes_zero and abs(mean + shift) >= math.log1p(least):
            return True
        if is_equivalent(projected, alpha=alpha, least=least):
            return True
    return False


def is_promising(effect: float | None, p: float | None, *, least: float) -> bool:
    """Return whether a look needs a second batch: ``p`` below ``SECOND_BATCH_LEVEL``, the effect at least ``least``."""
    return (
        effect is not None and p is not None and p < SECOND_BATCH_LEVEL and abs(math.log1p(effect)) >= math.log1p(least)
    )


def agrees(first: float, second: float, pooled_p: float, *, least: float) -> bool:
    """Return whether a second batch confirms the first: same direction, large enough, and both together significant.

    Effects are relative; ``pooled_p``: probability of both batches as one.
    """
    return first * second > 0 and abs(math.log1p(second)) >= math.log1p(least) and pooled_p < CONFIRM_LEVEL
