"""Verdicts, looks, confirmation, and how many pairs would settle it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from perfscope.analyzers.compare.runs.comparison import from_single_captures
from perfscope.analyzers.compare.statistics.paired import (
    LEVELS,
    LOOKS,
    could_settle,
    effect_of,
    judge,
    level_for,
    looks_for,
    pairs_needed,
)
from perfscope.analyzers.compare.statistics.verdict import MetricResult, confirmed, from_pairs, judge_many
from tests.compare.simulated_launches import AR, LAUNCH, SLOPE, WALK, WORLDS, World, arms, level

PAIRS = 10
HARD = ("+ launch 1%", "+ walk 2%", "AR .9, slope 3%")


def compared(world: World, change: float, count: int, seed: int, pairs: int = PAIRS) -> list[MetricResult]:
    rng = np.random.default_rng(seed)
    results = []
    for _ in range(count):
        base, head, _ = arms(world, pairs, change, rng)
        sides = [[level(times) for times in side] for side in (base, head)]
        results.append(from_pairs("step", *sides, estimator="median"))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
def test_false_alarms_stay_below_their_level(name: str) -> None:
    """Regression or improvement where nothing changed; also by the bare test, without a least change."""
    results = compared(WORLDS[name], 0.0, 300, seed=1)
    assert np.mean([result.verdict in ("regression", "improvement") for result in results]) <= 0.06
    assert np.mean([(result.p or 0) < 0.05 for result in results]) <= 0.09, "5% and three standard errors above"


@pytest.mark.parametrize("name", ["+ launch 1%", "+ walk 2%"])
def test_a_change_of_three_percent_is_found_by_ten_pairs(name: str) -> None:
    results = compared(WORLDS[name], 0.03, 300, seed=2)
    significant = [(result.p or 1) < 0.05 for result in results]
    assert np.mean(significant) >= 0.85
    assert np.mean([result.verdict == "regression" for result in results]) >= 0.85, "and 2% large at that"
    assert not [result for result in results if result.verdict == "improvement"]


def test_the_same_the_other_way_round_is_an_improvement() -> None:
    results = compared(WALK, -0.05, 100, seed=3)
    assert np.mean([result.verdict == "improvement" for result in results]) >= 0.85
    assert not [result for result in results if result.verdict == "regression"]


def test_steps_taken_for_evidence_cry_wolf_and_this_simulation_shows_it() -> None:
    """Single captures: an interval from steps misses what a launch has in common. That is why it never gates."""
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(40):
        base, head, _ = arms(WALK, 1, 0.0, rng)
        result = from_single_captures("step", base[0].tolist(), head[0].tolist(), least=1e-6)
        assert not result.gates
        alarms += result.verdict in ("regression", "improvement")
    assert alarms / 40 > 0.2


def test_single_captures_hold_their_level_where_only_steps_resemble_each_other() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(150):
        base, head, _ = arms(AR, 1, 0.0, rng)
        alarms += from_single_captures("step", base[0].tolist(), head[0].tolist()).verdict == "regression"
    assert alarms / 150 <= 0.06


@pytest.mark.parametrize("most", [10, 30, 60])
def test_looking_early_keeps_the_level(most: int) -> None:
    """Any look that finds a change where there is none, by the bare t test."""
    rng = np.random.default_rng(6)
    looks = looks_for(most)
    found = np.zeros(2500, bool)
    for number in range(found.size):
        ratios = rng.standard_normal(most)
        found[number] = any((effect_of_fast(ratios[:look]) < level_for(len(looks))) for look in looks)
    assert found.mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / found.size)
    assert found.mean() >= 0.03, "nor is power given away"


def effect_of_fast(ratios: np.ndarray) -> float:
    from perfscope.analyzers.compare.statistics import estimators

    return estimators.two_sided_p(float(ratios.mean() / ratios.std(ddof=1) * np.sqrt(ratios.size)), ratios.size - 1)


def test_looking_after_every_pair_does_not() -> None:
    rng = np.random.default_rng(7)
    found = [
        any(effect_of_fast(ratios[:look]) < 0.05 for look in range(5, 31)) for ratios in rng.standard_normal((300, 30))
    ]
    assert np.mean(found) > 0.15


def test_no_change_is_not_said_of_a_change_that_matters() -> None:
    """At the bound itself each one-sided test fails one time in twenty at most, at any of five looks."""
    rng = np.random.default_rng(8)
    looks = looks_for(30)
    said = []
    for _ in range(200):
        ratios = np.log1p(0.02) + 0.01 * rng.standard_normal(30)
        verdicts = [judge(effect_of(ratios[:look]), alpha=level_for(5), least=0.02) for look in looks]
        said.append("no change" in verdicts)
    assert np.mean(said) <= 0.1, "5% and three standard errors above"


@pytest.mark.slow
def test_of_kernels_that_are_named_few_are_false_and_most_slow_ones_are() -> None:
    """120 kernels, six of them 10% slower, launches that differ by 1% and kernels by 3%."""
    rng = np.random.default_rng(9)
    false = named = hit = 0
    for _ in range(25):
        shared = 0.01 * rng.standard_normal((2, PAIRS))
        kernels = {}
        for number in range(120):
            base = np.exp(shared[0] + 0.03 * rng.standard_normal(PAIRS))
            head = np.exp(shared[1] + 0.03 * rng.standard_normal(PAIRS)) * (1.1 if number < 6 else 1)
            kernels[f"k{number}"] = (base.tolist(), head.tolist())
        changes = judge_many(kernels, ([120.0] * PAIRS, [120.6] * PAIRS))
        flagged = [int(one.name[1:]) for one in changes if one.verdict != "inconclusive"]
        named += len(flagged)
        false += sum(number >= 6 for number in flagged)
        hit += sum(number < 6 for number in flagged)
    assert false / max(named, 1) <= 0.08
    assert hit / 150 >= 0.8


def test_the_levels_fit_the_looks() -> None:
    assert len(LEVELS) == len(LOOKS)
    assert list(LEVELS) == sorted(LEVELS, reverse=True)
    assert (LAUNCH.launch, SLOPE.slope) == (0.01, 0.03)


def result(change: float, spread: float = 0.01, pairs: int = 10, seed: int = 0, **more: object) -> MetricResult:
    """Pairs whose log ratios have exactly this mean and spread."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(pairs)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    base = 1e6 * np.exp(0.1 * rng.standard_normal(pairs))
    head = base * np.exp(math.log1p(change) + spread * noise)
    return from_pairs("step", base.tolist(), head.tolist(), estimator="median", **more)  # type: ignore[arg-type]


def test_the_four_verdicts() -> None:
    assert result(0.03).verdict == "regression"
    assert result(-0.03).verdict == "improvement"
    assert result(0.0).verdict == "no change"
    assert result(0.0, spread=0.05).verdict == "inconclusive"


def test_more_is_better_of_a_throughput() -> None:
    assert result(0.03, better="higher").verdict == "improvement"
    assert result(-0.03, better="higher").verdict == "regression"


def test_shown_values_differ_as_the_pairs_do() -> None:
    """The machine slows down by a half between pairs: by medians the head is slower, in every pair it is faster."""
    base = [1.60, 1.70, 1.79, 2.60, 2.70]
    head = [one * 0.963 for one in (1.55, 1.75, 2.00, 2.50, 2.80)]
    result = from_pairs("step time", base, head, estimator="median")
    assert result.effect is not None
    assert isinstance(result.base, float)
    assert isinstance(result.head, float)
    assert result.head / result.base - 1 == pytest.approx(result.effect)
    assert math.sqrt(result.base * result.head) == pytest.approx(math.sqrt(np.median(base) * np.median(head)))
    assert (np.median(head) > np.median(base)) is not (result.effect > 0)


def test_significant_but_too_small_to_matter() -> None:
    small = result(0.015, spread=0.01)
    assert small.p is not None
    assert small.p < 0.05
    assert small.verdict == "inconclusive"
    assert any("less than the 2.0% that matters" in remark for remark in small.remarks)
    assert result(0.01, spread=0.005).verdict == "no change", "shown to be within 2%"


def test_a_lower_level_asks_for_more() -> None:
    assert result(0.025, spread=0.03).verdict == "regression"
    assert result(0.025, spread=0.03, alpha=level_for(5)).verdict == "inconclusive"


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.08])
def test_so_many_pairs_would_settle_it(spread: float) -> None:
    noisy = effect_of(np.array([0.0, spread * math.sqrt(2)]) - spread / math.sqrt(2))
    assert noisy.spread == pytest.approx(spread)
    count = pairs_needed(noisy, least=0.02)
    assert count is not None
    stats = pytest.importorskip("scipy.stats")
    for pairs, enough in ((count, True), (count - 1, False)):
        half = stats.t.ppf(0.975, pairs - 1) * spread / math.sqrt(pairs)
        assert (half <= math.log(1.02) / 2) == enough
    assert count == pytest.approx((2 * 1.96 * spread / 0.02) ** 2, rel=0.15, abs=4)


@pytest.mark.parametrize(
    ("mean", "spread", "settles"), [(-0.2, 0.3, True), (0.0, 0.02, True), (0.0, 0.4, False), (-0.02, 0.4, False)]
)
def test_forty_five_pairs_would_settle_a_gain_or_quiet_pairs_and_no_others(
    mean: float, spread: float, settles: bool
) -> None:
    ratios = mean + spread * np.array([-1.0, 1.0] * 5)
    assert could_settle(effect_of(ratios), pairs=45, alpha=0.0124, least=0.02) is settles


def test_one_pair_is_no_reason_to_give_up() -> None:
    assert could_settle(effect_of(np.array([0.0])), pairs=45, alpha=0.0124, least=0.02)


def test_pairs_that_nobody_would_run_are_not_named() -> None:
    assert pairs_needed(effect_of(np.array([-2.0, 2.0])), least=0.001) is None
    assert pairs_needed(effect_of(np.array([0.1])), least=0.02) is None
    assert any("a quieter machine" in remark for remark in result(0.0, spread=0.2).remarks)
    assert result(0.0, spread=0.04).needed_pairs is not None


def test_nothing_and_one_pair_are_inconclusive() -> None:
    nothing = from_pairs("step", [], [], estimator="median")
    assert (nothing.verdict, nothing.base, nothing.remarks) == (
        "inconclusive",
        None,
        ("no pair of launches can be used",),
    )
    one = from_pairs("step", [1.0], [2.0], estimator="median")
    assert one.verdict == "inconclusive"
    assert one.effect == pytest.approx(1.0)
    json.dumps([nothing.to_json(), one.to_json()], allow_nan=False)


def test_looks_end_where_they_were_asked_to() -> None:
    assert looks_for(10) == (6, 10)
    assert looks_for(8) == (6, 8)
    assert looks_for(30) == (6, 10, 15, 20, 30)
    assert looks_for(5) == (5,)
    for pairs in (1, 61):
        with pytest.raises(ValueError):
            looks_for(pairs)
    for looks in (0, 8):
        with pytest.raises(ValueError):
            level_for(looks)


def test_a_least_change_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError):
        judge(effect_of(np.array([0.0, 0.1])), alpha=0.05, least=0)


def test_a_second_batch_confirms() -> None:
    both = confirmed(result(0.04), result(0.03, seed=1), result(0.035, pairs=20))
    assert (both.verdict, both.confirmed, both.pairs) == ("regression", True, 20)
    assert both.effect == pytest.approx(0.035)
    assert any("+4.0% in 10 pairs, then +3.0% in 10" in remark for remark in both.remarks)


def test_a_second_batch_need_not_be_significant_by_itself() -> None:
    """Launches of a busy machine: each batch of six is wide, both together are not."""
    first, second = result(0.9, spread=0.5, pairs=6), result(0.8, spread=0.9, pairs=6, seed=1)
    assert (second.p or 0) > 0.05
    assert confirmed(first, second, result(0.85, spread=0.6, pairs=12)).verdict == "regression"
    assert confirmed(result(-0.5), result(-0.4, seed=1), result(-0.45, pairs=20)).verdict == "improvement"


@pytest.mark.parametrize(("change", "spread"), [(-0.04, 0.01), (0.04, 0.2)])
def test_a_second_batch_that_does_not_agree_leaves_it_open(change: float, spread: float) -> None:
    """The other direction; the same, but both together are not significant."""
    both = confirmed(result(0.04), result(change, spread=spread, seed=1), result(0.02, spread=spread, pairs=20))
    assert (both.verdict, both.confirmed) == ("inconclusive", False)
    assert any("did not confirm" in remark for remark in both.remarks)


def test_both_batches_together_must_matter_too() -> None:
    assert confirmed(result(0.025), result(0.012, seed=1), result(0.0185, pairs=20)).verdict == "inconclusive"
