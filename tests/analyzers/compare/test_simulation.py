"""What the procedure promises, simulated: few false alarms, enough power, looks that stay at their level."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.compare.blocks import from_single_captures
from perfscope.analyzers.compare.many import judge_many
from perfscope.analyzers.compare.paired import effect_of
from perfscope.analyzers.compare.sequential import LEVELS, LOOKS, judge, level_for, looks_for
from perfscope.analyzers.compare.verdict import MetricResult, from_pairs
from tests.analyzers.compare.simulate import AR, LAUNCH, SLOPE, WALK, WORLDS, World, arms, level

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
    from perfscope.analyzers.compare import student

    return student.two_sided_p(float(ratios.mean() / ratios.std(ddof=1) * np.sqrt(ratios.size)), ratios.size - 1)


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
