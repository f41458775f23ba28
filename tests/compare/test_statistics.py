"""Two single captures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfscope.analyzers.compare.ab.environment import drift_remark, order_remark
from perfscope.analyzers.compare.runs.comparison import LOW_CONFIDENCE, from_single_captures, resemblance
from perfscope.analyzers.compare.statistics import estimators
from perfscope.analyzers.compare.statistics.estimators import choose, location
from perfscope.analyzers.compare.statistics.paired import (
    effect_of,
    hodges_lehmann,
    log_ratios,
    sign_flip_p,
    two_groups,
)
from perfscope.analyzers.compare.statistics.verdict import corrected, judge_many
from perfscope.analyzers.compare.statistics.warm_up import steady_part, truncation
from tests.compare.simulated_launches import World, launches


def test_resemblance_is_that_of_the_process() -> None:
    rng = np.random.default_rng(0)
    values = launches(World(steps=2000, correlation=0.7, outliers=0, warmup=0), 1, rng)[0]
    found = resemblance(values)
    assert found.correlation == pytest.approx(0.7, abs=0.06)
    assert found.effective == pytest.approx(2000 * 0.3 / 1.7, rel=0.3)
    assert resemblance(rng.standard_normal(2000)).effective > 1700
    assert resemblance(np.ones(10)).correlation == 0
    assert resemblance(np.arange(50.0)).effective >= 1, "a slope resembles nothing else"


def test_a_large_change_is_told_and_gates_nothing() -> None:
    rng = np.random.default_rng(1)
    base, head = launches(World(), 2, rng)
    found = from_single_captures("step", base.tolist(), (head * 1.3).tolist())
    assert found.verdict == "regression"
    assert not found.gates
    assert found.effect == pytest.approx(0.3, abs=0.05)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.3 < found.high
    assert LOW_CONFIDENCE in found.remarks
    again = from_single_captures("step", base.tolist(), (head * 1.3).tolist())
    assert again == found, "the same captures, the same answer"


def test_the_same_capture_twice_is_no_change() -> None:
    base = launches(World(steps=200), 1, np.random.default_rng(2))[0].tolist()
    assert from_single_captures("step", base, base).verdict == "no change"


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ([5.0] * 4, "are too few"),
        ([], "no step was timed"),
        ([1.0, float("nan")] * 9, "not a positive number"),
        ([0.0], "not"),
    ],
)
def test_what_cannot_be_compared_is_inconclusive(base: list[float], said: str) -> None:
    found = from_single_captures("step", base, [5.0] * 40)
    assert found.verdict == "inconclusive"
    assert (found.low, found.high) == (None, None)
    assert any(said in remark for remark in found.remarks)


def test_equal_times_are_no_change() -> None:
    assert from_single_captures("step", [5.0] * 40, [5.0] * 40).verdict == "no change"


def test_a_base_that_moves_is_told() -> None:
    rng = np.random.default_rng(0)
    still = np.exp(0.01 * rng.standard_normal(20))
    assert drift_remark(still.tolist()) is None
    assert "moved by +" in str(drift_remark((still * np.exp(np.linspace(0, 0.3, 20))).tolist()))


def test_noise_alone_is_seldom_called_drift() -> None:
    rng = np.random.default_rng(1)
    remarks = [drift_remark(np.exp(0.05 * rng.standard_normal(20)).tolist()) for _ in range(500)]
    assert np.mean([remark is not None for remark in remarks]) <= 0.01


def test_few_launches_say_nothing() -> None:
    assert drift_remark([1.0] * 7) is None
    assert order_remark([1.0] * 7, [2.0] * 7) is None


def test_the_second_place_of_a_pair_may_cost() -> None:
    rng = np.random.default_rng(2)
    first = np.exp(0.01 * rng.standard_normal(20))
    assert order_remark(first.tolist(), (first * 1.05 * np.exp(0.01 * rng.standard_normal(20))).tolist()) is not None
    assert order_remark(first.tolist(), np.exp(0.01 * rng.standard_normal(20)).tolist()) is None


def test_locations() -> None:
    times = [float(value) for value in range(1, 102)]
    assert location(times, "median") == 51
    assert location(times, "p10") == 11
    assert location(times, "p90") == 91
    assert location(times, "mean") == 51
    assert location(times, "p99") is None, "too few steps for it"
    assert location([], "median") is None
    for times, estimator in (([1.0], "p42"), ([0.0], "median"), ([float("nan")], "mean")):
        with pytest.raises(ValueError):
            location(times, estimator)


def crowded(rng: np.random.Generator) -> list[float]:
    """A launch on a shared machine: the share of disturbed steps differs between launches."""
    times = 100 + rng.standard_normal(80)
    times[rng.random(80) < rng.uniform(0.2, 0.8)] *= 1.5
    return [float(value) for value in times]


def test_on_a_machine_that_others_use_a_low_quantile_is_chosen() -> None:
    rng = np.random.default_rng(0)
    chosen = choose([(crowded(rng), crowded(rng)) for _ in range(5)])
    assert chosen.name == "p10"
    assert chosen.spread["p10"] < 0.1 * chosen.spread["median"]
    assert "5 base/base pairs" in chosen.reason()


def test_on_a_quiet_machine_it_is_the_median() -> None:
    rng = np.random.default_rng(1)
    quiet = [
        choose([tuple((100 * (1 + 0.01 * rng.standard_normal()) + rng.standard_normal(80)).tolist() for _ in "ab")
                for _ in range(5)]).name
        for _ in range(30)
    ]  # fmt: skip
    assert quiet.count("median") >= 27


def test_few_pairs_choose_nothing() -> None:
    chosen = choose([([1.0], [2.0]), ([1.0], [])])
    assert (chosen.name, chosen.pairs, chosen.spread) == ("median", 1, {})
    assert "not calibrated" in chosen.reason()


@pytest.mark.slow
def test_correction_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    p = np.random.default_rng(0).random(200) ** 3
    assert corrected(p.tolist()) == pytest.approx(stats.false_discovery_control(p))
    assert corrected([]).size == 0
    assert corrected([0.04]).tolist() == [0.04]
    with pytest.raises(ValueError):
        corrected([1.2])


def pairs(level: float, change: float = 0.0, seed: int = 0) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    base = level * np.exp(0.005 * rng.standard_normal(8))
    return base.tolist(), (base * (1 + change) * np.exp(0.005 * rng.standard_normal(8))).tolist()


def test_slower_new_gone_and_too_small_to_matter() -> None:
    zeros = [0.0] * 8
    kernels = {
        "gemm": pairs(100),
        "softmax": pairs(20, 0.3, seed=1),
        "add": pairs(0.1, 2.0, seed=2),
        "new": (zeros, pairs(10, seed=3)[1]),
        "gone": (pairs(5, seed=4)[0], zeros),
        "flicker": ([0.0] + [5.0] * 7, [5.0] * 8),
    }
    found = judge_many(kernels, pairs(140))
    assert [one.name for one in found][:3] == ["new", "softmax", "gone"], "by what they contribute"
    by_name = {one.name: one for one in found}
    assert "add" not in by_name
    assert (by_name["softmax"].kind, by_name["softmax"].verdict) == ("changed", "regression")
    assert (by_name["new"].kind, by_name["new"].verdict, by_name["new"].p) == ("new", "regression", None)
    assert (by_name["gone"].kind, by_name["gone"].verdict) == ("gone", "improvement")
    assert by_name["gemm"].verdict == "inconclusive"
    assert by_name["flicker"].p is None, "it did not run in each launch: no ratio"
    assert by_name["softmax"].change_ns == pytest.approx(6, rel=0.1)


def test_shown_times_of_a_kernel_differ_as_its_effect_does() -> None:
    """One slow launch turns the difference of the means, the machine's drift that of the medians; the pairs do not."""
    base = [1.60, 1.70, 1.79, 2.60, 2.70]
    head = [1.45, 1.60, 1.85, 2.40, 3.15]
    (kernel,) = judge_many({"k": (base, head)}, (base, head))
    assert kernel.effect is not None
    assert np.mean(head) > np.mean(base)
    assert np.median(head) > np.median(base)
    assert kernel.effect == pytest.approx(float(np.exp(np.mean(np.log(head) - np.log(base)))) - 1)
    assert kernel.head_ns / kernel.base_ns - 1 == pytest.approx(kernel.effect)
    assert kernel.change_ns == pytest.approx(kernel.head_ns - kernel.base_ns)


def test_bad_tables_are_refused_and_empty_ones_are_empty() -> None:
    assert judge_many({}, ([1.0], [1.0])) == []
    assert judge_many({"k": ([], [])}, ([], [])) == []
    for bad in (([1.0], [1.0, 2.0]), ([-1.0] * 2, [1.0] * 2), ([float("nan")] * 2, [1.0] * 2)):
        with pytest.raises(ValueError, match="k:"):
            judge_many({"k": bad}, ([1.0] * 2, [1.0] * 2))


def test_two_launches_are_too_few_for_a_probability() -> None:
    (one,) = judge_many({"k": ([10.0, 10.0], [20.0, 20.1])}, ([10.0, 10.0], [20.0, 20.0]))
    assert (one.p, one.verdict) == (None, "inconclusive")


BASE = [100.0, 104.0, 98.0, 101.0, 107.0, 99.0, 103.0]
HEAD = [103.0, 106.0, 102.0, 103.0, 109.0, 104.0, 104.0]


def test_effect_interval_and_probability_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    effect = effect_of(log_ratios(BASE, HEAD))
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
    there, back = effect_of(log_ratios(BASE, HEAD)), effect_of(log_ratios(HEAD, BASE))
    assert there.p == pytest.approx(back.p)
    assert (1 + there.effect) * (1 + back.effect) == pytest.approx(1)


def test_one_pair_has_an_effect_and_no_more() -> None:
    effect = effect_of(log_ratios([100.0], [110.0]))
    assert effect.effect == pytest.approx(0.1)
    assert (effect.p, effect.p_sign_flip, effect.low, effect.high, effect.spread) == (None,) * 5
    assert effect.interval(0.1) is None


def test_equal_values_change_nothing() -> None:
    effect = effect_of(log_ratios([5.0] * 8, [5.0] * 8))
    assert (effect.effect, effect.p, effect.low, effect.high, effect.two_groups) == (0, 1, 0, 0, None)


def test_equal_ratios_are_as_sure_as_sign_flips_allow() -> None:
    assert effect_of(log_ratios([5.0] * 6, [6.0] * 6)).p == pytest.approx(2 / 64)


@pytest.mark.parametrize(
    ("base", "head"),
    [([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [float("nan")]), ([1.0], [float("inf")]), ([-1.0], [1.0]), ([], [])],
)
def test_what_are_no_pairs_of_times_is_refused(base: list[float], head: list[float]) -> None:
    with pytest.raises(ValueError):
        effect_of(log_ratios(base, head))


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


@pytest.mark.parametrize("freedom", [1, 2, 5, 9, 29, 59, 1000])
def test_probabilities_are_those_of_scipy(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    for t in (0.0, 0.1, 0.7, 1.96, 3.3, 12.7, 80.0, -2.5):
        both = 2 * stats.t.sf(abs(t), freedom)
        assert estimators.two_sided_p(t, freedom) == pytest.approx(both, rel=1e-9, abs=1e-300), t
        assert estimators.upper_p(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9), t


@pytest.mark.parametrize(
    ("probability", "freedom", "value"), [(0.975, 9, 2.262157), (0.975, 1, 12.706205), (0.95, 5, 2.015048)]
)
def test_quantiles_are_those_of_the_tables(probability: float, freedom: int, value: float) -> None:
    assert estimators.quantile(probability, freedom) == pytest.approx(value, abs=1e-6)
    assert estimators.quantile(1 - probability, freedom) == pytest.approx(-value, abs=1e-6)


def test_the_edges() -> None:
    assert estimators.two_sided_p(math.inf, 3) == 0
    assert estimators.two_sided_p(0, 3) == 1
    assert estimators.quantile(0.5, 3) == 0
    assert estimators.regularized_beta(-0.1, 1, 1) == 0
    assert estimators.regularized_beta(1, 1, 1) == 1
    with pytest.raises(ValueError):
        estimators.two_sided_p(1, 0)
    with pytest.raises(ValueError):
        estimators.two_sided_p(math.nan, 2)
    with pytest.raises(ValueError):
        estimators.quantile(1.0, 2)


def test_the_cut_is_where_a_brute_force_search_finds_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        batches = 1e7 + rng.standard_normal(24) + 8 * np.exp(-np.arange(24) / rng.uniform(0.5, 4))
        scores = [np.sum((batches[d:] - batches[d:].mean()) ** 2) / (24 - d) ** 2 for d in range(13)]
        assert truncation(batches) == int(np.argmin(scores))


def test_a_slow_start_is_cut_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    times = 100 + rng.standard_normal(100)
    times[:20] += 50
    part = steady_part(times.tolist())
    assert 20 <= part.dropped <= 40, "all of it; MSER goes a little farther where that lowers the error"
    assert part.problem is None


def test_without_a_warm_up_little_more_than_the_floor_is_dropped() -> None:
    rng = np.random.default_rng(2)
    dropped = [steady_part((100 + rng.standard_normal(100)).tolist()).dropped for _ in range(100)]
    assert min(dropped) == 3
    assert np.median(dropped) <= 10


def test_one_interrupted_step_is_no_warm_up() -> None:
    times = [100.0] * 60
    times[45] = 150.0
    assert steady_part(times).dropped <= 30
    assert steady_part(times).problem is None


def test_a_launch_that_never_settles_is_rejected() -> None:
    part = steady_part((100 * np.exp(-np.arange(60) / 40)).tolist())
    assert part.kept == 0
    assert part.problem is not None
    assert "no steady state in 60 timed steps" in part.problem


@pytest.mark.parametrize(("count", "dropped"), [(1, 0), (3, 0), (4, 1), (12, 3), (19, 3)])
def test_of_few_steps_the_floor_alone_goes(count: int, dropped: int) -> None:
    assert steady_part([5.0] * count).dropped == dropped
    assert steady_part([5.0] * count).kept == count - dropped


@pytest.mark.parametrize("times", [[], [1.0, 0.0], [1.0, float("nan")], [-1.0], [float("inf")]])
def test_what_is_no_time_is_a_problem(times: list[float]) -> None:
    assert steady_part(times).problem is not None


def test_equal_times_stay() -> None:
    part = steady_part([7.0] * 50)
    assert (part.dropped, part.problem) == (3, None)
