"""Two single captures."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.compare.blocks import LOW_CONFIDENCE, from_single_captures, resemblance
from tests.analyzers.compare.simulate import World, launches


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
