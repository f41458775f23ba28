"""Paired log ratios: against scipy, by hand, and where there is next to nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfscope.analyzers.compare.paired import effect_of, hodges_lehmann, paired_effect, sign_flip_p, two_groups

BASE = [100.0, 104.0, 98.0, 101.0, 107.0, 99.0, 103.0]
HEAD = [103.0, 106.0, 102.0, 103.0, 109.0, 104.0, 104.0]


def test_effect_interval_and_probability_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    effect = paired_effect(BASE, HEAD)
    ratios = np.log(np.array(HEAD) / np.array(BASE))
    test = stats.ttest_1samp(ratios, 0)
    interval = test.confidence_interval(0.95)
    assert effect.p == pytest.approx(test.pvalue)
    assert (effect.low, effect.high) == pytest.approx((math.expm1(interval.low), math.expm1(interval.high)))
    flips = stats.permutation_test((ratios,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert effect.p_sign_flip == pytest.approx(flips.pvalue)
    assert effect.effect == pytest.approx(math.expm1(ratios.mean()))


def test_sign_flips_by_hand() -> None:
    assert sign_flip_p(np.array([1.0, 1.0, 1.0])) == pytest.approx(2 / 8)
    assert sign_flip_p(np.array([1.0, -1.0])) == 1
    assert sign_flip_p(np.zeros(4)) == 1


def test_random_sign_flips_agree_with_the_t_test() -> None:
    rng = np.random.default_rng(0)
    effect = effect_of(0.004 + 0.01 * rng.standard_normal(30))
    assert effect.p is not None
    assert effect.p_sign_flip == pytest.approx(effect.p, abs=0.01)


def test_one_odd_pair_moves_the_robust_estimate_little() -> None:
    ratios = np.array([0.01, 0.012, 0.009, 0.011, 0.010, 0.9])
    assert hodges_lehmann(ratios) < 0.02 < ratios.mean()
    assert hodges_lehmann(np.array([1.0, 3.0])) == 2


def test_swapping_the_arms_turns_the_effect_round() -> None:
    there, back = paired_effect(BASE, HEAD), paired_effect(HEAD, BASE)
    assert there.p == pytest.approx(back.p)
    assert (1 + there.effect) * (1 + back.effect) == pytest.approx(1)


def test_one_pair_has_an_effect_and_no_more() -> None:
    effect = paired_effect([100.0], [110.0])
    assert effect.effect == pytest.approx(0.1)
    assert (effect.p, effect.p_sign_flip, effect.low, effect.high, effect.spread) == (None,) * 5
    assert effect.interval(0.1) is None


def test_equal_values_change_nothing() -> None:
    effect = paired_effect([5.0] * 8, [5.0] * 8)
    assert (effect.effect, effect.p, effect.low, effect.high, effect.two_groups) == (0, 1, 0, 0, None)


def test_equal_ratios_are_as_sure_as_sign_flips_allow() -> None:
    assert paired_effect([5.0] * 6, [6.0] * 6).p == pytest.approx(2 / 64)


@pytest.mark.parametrize(
    ("base", "head"),
    [([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [float("nan")]), ([1.0], [float("inf")]), ([-1.0], [1.0]), ([], [])],
)
def test_what_are_no_pairs_of_times_is_refused(base: list[float], head: list[float]) -> None:
    with pytest.raises(ValueError):
        paired_effect(base, head)


def test_two_groups_of_pairs_are_told() -> None:
    rng = np.random.default_rng(1)
    ratios = 0.004 * rng.standard_normal(12)
    assert two_groups(ratios) is None
    ratios[:4] += 0.06
    found = two_groups(ratios)
    assert found is not None
    assert found[0] == pytest.approx(0.0, abs=0.006)
    assert found[1] == pytest.approx(0.06, abs=0.006)


def test_one_group_is_seldom_taken_for_two() -> None:
    rng = np.random.default_rng(2)
    for count in (8, 10, 12, 20, 30):
        assert np.mean([two_groups(0.02 * rng.standard_normal(count)) is not None for _ in range(300)]) <= 0.03
