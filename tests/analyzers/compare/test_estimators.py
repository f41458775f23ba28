"""What stands for a launch, and how it is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.compare.estimators import choose, location


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
    """A launch beside others: from launch to launch another share of its steps is disturbed."""
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
