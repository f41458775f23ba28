"""Many kernels."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.compare.many import corrected, judge_many


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
    assert by_name["softmax"].change == pytest.approx(6, rel=0.1)


def test_bad_tables_are_refused_and_empty_ones_are_empty() -> None:
    assert judge_many({}, ([1.0], [1.0])) == []
    assert judge_many({"k": ([], [])}, ([], [])) == []
    for bad in (([1.0], [1.0, 2.0]), ([-1.0] * 2, [1.0] * 2), ([float("nan")] * 2, [1.0] * 2)):
        with pytest.raises(ValueError, match="k:"):
            judge_many({"k": bad}, ([1.0] * 2, [1.0] * 2))


def test_two_launches_are_too_few_for_a_probability() -> None:
    (one,) = judge_many({"k": ([10.0, 10.0], [20.0, 20.1])}, ([10.0, 10.0], [20.0, 20.0]))
    assert (one.p, one.verdict) == (None, "inconclusive")
