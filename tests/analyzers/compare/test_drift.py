"""What happened to the machine meanwhile."""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.compare.drift import drift_of, order_remark


def test_a_base_that_moves_is_told() -> None:
    rng = np.random.default_rng(0)
    still = np.exp(0.01 * rng.standard_normal(20))
    quiet, moved = drift_of(still.tolist()), drift_of((still * np.exp(np.linspace(0, 0.3, 20))).tolist())
    assert quiet is not None
    assert moved is not None
    assert (quiet.moved, quiet.remark()) == (False, None)
    assert moved.moved
    assert "moved by +" in str(moved.remark())


def test_noise_alone_is_seldom_called_drift() -> None:
    rng = np.random.default_rng(1)
    found = [drift_of(np.exp(0.05 * rng.standard_normal(20)).tolist()) for _ in range(500)]
    assert np.mean([one is not None and one.moved for one in found]) <= 0.01


def test_few_launches_say_nothing() -> None:
    assert drift_of([1.0] * 7) is None
    assert order_remark([1.0] * 7, [2.0] * 7) is None


def test_the_second_place_of_a_pair_may_cost() -> None:
    rng = np.random.default_rng(2)
    first = np.exp(0.01 * rng.standard_normal(20))
    assert order_remark(first.tolist(), (first * 1.05 * np.exp(0.01 * rng.standard_normal(20))).tolist()) is not None
    assert order_remark(first.tolist(), np.exp(0.01 * rng.standard_normal(20)).tolist()) is None
