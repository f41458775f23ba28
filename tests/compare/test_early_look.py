"""The sequential rule of `perfscope try`: false alarms and coverage, simulated with fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.compare.statistics.estimators import quantile
from perfscope.analyzers.compare.statistics.paired import EARLY_LOOK, LOOKS, level_for, looks_for

COMPARISONS = 20_000
MOST = 45
ERROR = 3 * np.sqrt(0.05 * 0.95 / COMPARISONS)
"""Three standard errors of a share of 5%."""


def launches(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Log times of the launches of one side, one row per comparison."""
    shape = (COMPARISONS, MOST)
    if kind == "two levels":
        return rng.choice([-0.1, 0.1], shape) + rng.normal(0, 0.005, shape)
    if kind == "some slow":
        return np.where(rng.random(shape) < 0.2, 0.3, 0.0) + rng.normal(0, 0.01, shape)
    if kind == "heavy tails":
        return 0.05 * rng.standard_t(3, shape)
    return rng.normal(0, 0.05, shape)


def half_widths(ratios: np.ndarray, looks: tuple[int, ...], level: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean and half of the interval of each comparison at each look."""
    return [
        (
            ratios[:, :look].mean(1),
            quantile(1 - level / 2, look - 1) * ratios[:, :look].std(1, ddof=1) / np.sqrt(look),
        )
        for look in looks
    ]


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "two levels", "some slow"])
def test_at_most_one_of_twenty_changes_without_an_effect_is_called_a_change(kind: str) -> None:
    rng = np.random.default_rng(11)
    looks = looks_for(MOST, early=True)
    assert looks[:2] == (EARLY_LOOK, LOOKS[0])
    base, head = launches(kind, rng), launches(kind, rng)
    found = np.zeros(COMPARISONS, bool)
    for look, (mean, half) in zip(
        looks, half_widths(head - base, looks, level_for(len(looks), early=True)), strict=True
    ):
        significant = abs(mean) > half
        if look < LOOKS[0]:
            mine, theirs = head[:, :look], base[:, :look]
            significant &= (mine.max(1) < theirs.min(1)) | (theirs.max(1) < mine.min(1))
        found |= significant
    assert found.mean() <= 0.05 + ERROR
    assert found.mean() >= 0.02, "nor is power given away"


def test_three_pairs_would_not_hold_the_level_with_two_levels_of_launches() -> None:
    """Why the early look is at four pairs."""
    rng = np.random.default_rng(12)
    base, head = launches("two levels", rng)[:, :3], launches("two levels", rng)[:, :3]
    ((mean, half),) = half_widths(head - base, (3,), level_for(7, early=True))
    apart = (head.max(1) < base.min(1)) | (base.max(1) < head.min(1))
    assert ((abs(mean) > half) & apart).mean() > 0.025, "more than half of the 5% at this look alone"


@pytest.mark.parametrize("most", [6, 10, 45, 60])
def test_the_intervals_of_all_looks_contain_the_effect_in_19_of_20_comparisons(most: int) -> None:
    rng = np.random.default_rng(13)
    looks = looks_for(most, early=True)
    effect = np.log(0.8)
    ratios = effect + rng.normal(0, 0.1, (COMPARISONS, most))
    missed = np.zeros(COMPARISONS, bool)
    for mean, half in half_widths(ratios, looks, level_for(len(looks), early=True)):
        missed |= abs(mean - effect) > half
    assert 0.04 <= missed.mean() <= 0.05 + ERROR
