"""False alarms and power of the rule, on recorded launches of a quiet and a busy machine."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.compare.ab.judge import AbJudge
from perfscope.analyzers.compare.statistics.estimators import BUSY, CANDIDATES, choose
from perfscope.model.documents.ab import Launch, Pair, Pairs
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def power() -> Any:
    pytest.importorskip("scipy.stats")
    spec = importlib.util.spec_from_file_location("compare_power", REPOSITORY / "benchmarks" / "compare_power.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare_power"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("most", [6, 10, 12])
@pytest.mark.parametrize("world", ["quiet", "busy"])
def test_false_alarms_are_few_and_large_changes_are_found(power: Any, world: str, most: int) -> None:
    noises = power.noises(world)
    assert {noise.program for noise in noises} == set(power.PROGRAMS)
    at_thirty = []
    for noise in noises:
        drawn = power.draw(noise, most, np.random.default_rng(most))
        assert power.found(drawn, most, 0.0).mean() <= 0.02
        assert power.found(drawn, most, 3 * power.noise_floor(drawn)).mean() >= (0.85 if most == 6 else 0.95)
        assert power.found(drawn, most, 1.0).mean() >= 0.99
        at_thirty.append(power.found(drawn, most, 0.3).mean())
    if world == "busy" and most > 6:
        assert np.mean(at_thirty) >= 0.985
        assert min(at_thirty) >= 0.95


def test_the_rule_before_found_less(power: Any) -> None:
    (noise,) = (noise for noise in power.noises("busy") if noise.program == "attention")
    drawn = power.draw(noise, 6, np.random.default_rng(0))
    assert power.found(drawn, 6, 0.3, separate=True).mean() < power.found(drawn, 6, 0.3).mean() - 0.1


def test_the_simulation_decides_as_the_judge_does(power: Any) -> None:
    """The same ratios as launches: the judge requests a second batch and confirms where the simulation does."""
    rng, most, decided = np.random.default_rng(3), 10, []
    power.TRIALS = 24
    ratios = 0.12 * rng.standard_normal((24, 2 * most))
    expected = power.found(ratios, most, 0.06)
    for row in ratios + np.log(1.06):
        pairs = [as_pair(number, ratio) for number, ratio in enumerate(row)]
        judge, done = AbJudge(pairs=most, least=0.02), 0
        decision = "go on"
        while decision == "go on":
            done += 1
            decision = judge.look((), pairs[:done])
        confirming = tuple(pairs[done : 2 * done]) if decision == "confirm" else ()
        result = judge.result(Pairs(calibration=(), measured=tuple(pairs[:done]), confirming=confirming))
        decided.append(result.step.confirmed is True)
    assert decided == expected.tolist()
    assert 2 < sum(decided) < 22


def as_pair(number: int, ratio: float) -> Pair:
    levels = (10_000_000, 10_000_000 * np.exp(ratio))
    base, head = (
        Launch(arm=arm, phase="measure", pair=number, slot=slot, seconds=1.0, code=0, steps_seen=32,
               step_ns=(round(levels[slot]),) * 30)
        for slot, arm in enumerate(("base", "head"))
    )  # fmt: skip
    return base, head


def test_where_others_use_the_machine_the_fastest_step_is_taken() -> None:
    rng = np.random.default_rng(0)
    pairs = [tuple((10 + rng.random(40)).tolist() for _ in range(2)) for _ in range(5)]
    assert choose(pairs, others_share=0.05).name == choose(pairs).name
    assert (choose(pairs, others_share=0.5).name, BUSY in CANDIDATES) == ("fastest", True)
    assert "other programs used 50%" in choose(pairs, others_share=0.5).reason()
