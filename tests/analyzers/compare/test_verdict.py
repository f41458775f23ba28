"""Verdicts, looks, confirmation, and how many pairs would settle it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from perfscope.analyzers.compare.paired import effect_of
from perfscope.analyzers.compare.sequential import judge, level_for, looks_for, pairs_needed
from perfscope.analyzers.compare.verdict import MetricResult, confirmed, from_pairs


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


@pytest.mark.parametrize(("change", "spread"), [(0.002, 0.01), (-0.04, 0.01), (0.04, 0.08)])
def test_a_second_batch_that_does_not_agree_leaves_it_open(change: float, spread: float) -> None:
    both = confirmed(result(0.04), result(change, spread=spread, seed=1), result(0.02, pairs=20))
    assert (both.verdict, both.confirmed) == ("inconclusive", False)
    assert any("did not confirm" in remark for remark in both.remarks)


def test_both_batches_together_must_matter_too() -> None:
    assert confirmed(result(0.025), result(0.012, seed=1), result(0.0185, pairs=20)).verdict == "inconclusive"
