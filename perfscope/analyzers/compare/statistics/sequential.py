"""When to look, what level each look may use, when the answer is settled, and how many more pairs would settle it.

Looking after every pair and stopping at the first p < 0.05 finds a change in a quarter of all comparisons of a program
with itself. Few looks, each at a lower level that is the same for all (Pocock, Biometrika 64, 1977), keep the 5%.
"""

from __future__ import annotations

import math
from typing import Literal

from perfscope.analyzers.compare.statistics import estimators
from perfscope.analyzers.compare.statistics.paired import Effect

Verdict = Literal["regression", "improvement", "no change", "inconclusive"]
Better = Literal["lower", "higher"]

LOOKS = (6, 10, 15, 20, 30, 45, 60)
"""Pairs after which the answer is looked at: fewer than six cannot reach the level with a usual spread."""
MOST_PAIRS = LOOKS[-1]
LEVELS = (0.05, 0.028, 0.021, 0.0174, 0.0144, 0.0124, 0.0109)
"""Level of each look by the number of looks: with it, 5% of comparisons without a change show one at some look. From
a million simulated comparisons of t tests at ``LOOKS``, rounded down. Pocock's own constants (0.0158 for five) are for
normal values and equal steps; with t and these looks 0.0158 lets 5.4% through."""

CONFIRM_LEVEL = 0.05
"""Of the second batch. It is judged once, and both batches must agree: without a change, one in 800 does in the same
direction."""
LEAST_CONFIRMING = 6

MOST_NEEDED = 10_000
"""More pairs than this are not worth a number."""


def looks_for(pairs: int) -> tuple[int, ...]:
    """The looks of a comparison of at most ``pairs`` pairs; the last is at ``pairs``. ``ValueError`` unless 2 to 60."""
    if not 2 <= pairs <= MOST_PAIRS:
        raise ValueError(f"between 2 and {MOST_PAIRS} pairs can be compared, not {pairs}")
    return (*(look for look in LOOKS if look < pairs), pairs)


def level_for(looks: int) -> float:
    """The level of each of ``looks`` looks."""
    if not 1 <= looks <= len(LEVELS):
        raise ValueError(f"1 to {len(LEVELS)} looks are provided for, not {looks}")
    return LEVELS[looks - 1]


def judge(effect: Effect, *, alpha: float, least: float, better: Better = "lower") -> Verdict:
    """The verdict of one look at level ``alpha``. ``least``: the smallest relative change that matters, such as 0.02.

    A regression or improvement is significant and at least ``least`` large. No change is shown, not assumed: two
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


def is_equivalent(effect: Effect, *, alpha: float, least: float) -> bool:
    """Whether the interval of level 1 - 2 ``alpha`` lies within ``least``, in either direction the same factor."""
    interval = effect.interval(2 * alpha)
    if interval is None:
        return False
    bound = math.log1p(least)
    return -bound < math.log1p(interval[0]) and math.log1p(interval[1]) < bound


def pairs_needed(effect: Effect, *, least: float, alpha: float = 0.05) -> int | None:
    """Pairs in all after which the interval is no wider than ``least``; ``None`` if that is unknown.

    The least n with t_{n-1} s / sqrt(n) <= ln(1 + least) / 2, from the spread s of the pairs so far, which is a guess
    itself: with ten pairs it is off by a quarter as a rule. ``None`` also where more than ``MOST_NEEDED`` would be.
    """
    if effect.spread is None:
        return None
    widths = effect.spread / (math.log1p(least) / 2)

    def enough(count: int) -> bool:
        return (estimators.quantile(1 - alpha / 2, count - 1) * widths) ** 2 <= count

    if not enough(MOST_NEEDED):
        return None
    low, high = 2, MOST_NEEDED
    while low < high:  # the quantile falls with the count, so what is enough stays enough
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def agrees(first: Effect, second: Effect, verdict: Verdict, *, better: Better = "lower") -> bool:
    """Whether a second, independent batch confirms the verdict of the first: same direction, significant by itself."""
    if verdict not in ("regression", "improvement") or second.p is None:
        return False
    worse = verdict == "regression"
    directions = {(one.effect > 0) is (better == "lower") for one in (first, second)}
    return directions == {worse} and second.p < CONFIRM_LEVEL
