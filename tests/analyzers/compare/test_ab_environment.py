"""When the machine explains a change, and when the program itself moved the counter."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from perfscope.analyzers.compare.ab_environment import Environment, environment_of
from perfscope.analyzers.compare.ab_judge import AbJudge
from perfscope.profiler.ab_pairs import Launch, Pair, Pairs
from tests.analyzers.compare.test_ab_judge import CALIBRATION, JUDGE, pairs

Counters = dict[str, tuple[float, float]]
"""Name -> (base, head)."""


def with_counters(found: tuple[Pair, ...], held: Counters, spread: float = 0.002) -> tuple[Pair, ...]:
    rng = np.random.default_rng(3)

    def one(launch: Launch, arm: int) -> Launch:
        noise = 1 + spread * rng.standard_normal()
        return replace(launch, machine={name: sides[arm] * noise for name, sides in held.items()})

    return tuple((one(base, 0), one(head, 1)) for base, head in found)


def judged(change: float, held: Counters, count: int = 8) -> Environment:
    found = with_counters(pairs(count, change), held)
    step = JUDGE._step(JUDGE.result(Pairs(calibration=CALIBRATION, measured=found, confirming=())).estimator, found)
    assert step.verdict == ("regression" if change > 0 else "improvement" if change < 0 else "no change")
    return environment_of(found, step, least=0.02)


@pytest.mark.parametrize(
    ("change", "held"),
    [
        (0.08, {"gpu_mhz": (1980, 1800)}),
        (-0.08, {"gpu_mhz": (1800, 1980)}),
        (0.08, {"gpu_mhz": (1980, 1860)}),  # 6.5% of 8%: what remains does not matter
        (0.08, {"gpu_mhz": (1980, 1800), "gpu_capped_share": (0.1, 0.2)}),
        (0.08, {"cpu_mhz": (3000, 2700), "own_cpus": (0.98, 0.98)}),
        (0.08, {"steal_share": (0.01, 0.10), "own_cpus": (0.95, 0.88)}),
        (0.08, {"throttled_share": (0.02, 0.2)}),
    ],
)
def test_a_counter_that_is_enough_explains_the_change(change: float, held: Counters) -> None:
    found = judged(change, held)
    assert found.voids is not None
    assert found.voids.startswith("environment changed: ")
    assert f"{change:+.0%}"[:2] in found.voids


@pytest.mark.parametrize(
    ("change", "held", "why"),
    [
        (0.08, {"gpu_mhz": (1980, 1900)}, "4% of clock do not make 8%"),
        (0.08, {"gpu_mhz": (1800, 1980)}, "the slower arm had the higher clock"),
        (0.08, {"gpu_mhz": (1980, 1800), "gpu_capped_share": (0.9, 0.95)}, "its own power set the clock"),
        (0.08, {"cpu_mhz": (3000, 2700), "own_cpus": (0.98, 0.80)}, "it waits more, so processors are idle"),
        (0.08, {"throttled_share": (0.02, 0.2), "own_cpus": (0.5, 0.6)}, "it asks for more than the quota"),
        (0.08, {"steal_share": (0.01, 0.10), "own_cpus": (0.5, 0.6)}, "it asks for more"),
        (0.08, {"others_share": (0.1, 0.5)}, "a program that waits leaves time to others"),
        (0.08, {"gpu_celsius": (40, 80)}, "heat slows nothing by itself: clocks do"),
        (0.08, {"gpu_mhz": (1980, 1980)}, "nothing differs"),
        (0.0, {"gpu_mhz": (1980, 1800)}, "there is nothing to explain"),
        (0.08, {}, "nobody looked"),
    ],
)
def test_what_is_too_little_or_the_programs_own_explains_nothing(change: float, held: Counters, why: str) -> None:
    assert judged(change, held).voids is None, why


def test_a_counter_that_only_happens_to_differ_explains_nothing() -> None:
    found = list(with_counters(pairs(8, 0.08), {"gpu_mhz": (1980, 1980)}))
    base, head = found[0]
    found[0] = (base, replace(head, machine={"gpu_mhz": 900.0}))  # one launch of eight
    step = JUDGE._step(JUDGE.result(Pairs(calibration=(), measured=tuple(found), confirming=())).estimator, found)
    assert environment_of(found, step, least=0.02).voids is None


def test_few_pairs_say_nothing_of_counters() -> None:
    found = with_counters(pairs(4, 0.08), {"gpu_mhz": (1980, 1800)})
    step = JUDGE._step(JUDGE.result(Pairs(calibration=(), measured=found, confirming=())).estimator, found)
    assert environment_of(found, step, least=0.02).voids is None


def test_the_verdict_of_the_step_is_left_open_and_says_why() -> None:
    counters: Counters = {"gpu_mhz": (1980, 1800)}
    measured = with_counters(pairs(6, 0.08), counters)
    result = JUDGE.result(
        Pairs(calibration=CALIBRATION, measured=measured, confirming=with_counters(pairs(6, 0.08, seed=1), counters))
    )
    assert (result.step.verdict, result.step.confirmed) == ("inconclusive", False)
    said = [one for one in result.step.remarks if one.startswith("environment changed: the clock of the GPU was ")]
    assert re.search(r"was 19[78]\d MHz under base and (1[78]|179)\d\d? MHz under head \(p ", said[0]), said
    quiet = AbJudge(pairs=10, least=0.02).result(
        Pairs(calibration=CALIBRATION, measured=with_counters(pairs(6, 0.08), {}), confirming=())
    )
    assert quiet.step.verdict == "regression"


def in_course(values: Callable[[int], float], name: str = "cpu_mhz", count: int = 12) -> tuple[str, ...]:
    found = [
        tuple(replace(one, machine={name: values(number)}) for one in pair) for number, pair in enumerate(pairs(count))
    ]
    result = JUDGE.result(Pairs(calibration=CALIBRATION, measured=tuple(found), confirming=()))  # type: ignore[arg-type]
    return tuple(one for one in result.remarks if "in the course" in one)


def test_what_moves_over_time_is_told() -> None:
    (said,) = in_course(lambda number: 3000 - 60 * number)
    assert "the clock of the processors went from 2910 MHz to 2430 MHz" in said
    assert in_course(lambda number: 3000 - 2 * number) == (), "0.5% is too little to be told"
    assert in_course(lambda number: (3000, 2000)[number % 2]) == (), "it swings, it does not move"
    (said,) = in_course(lambda number: 0.02 * number, "throttled_share")
    assert "quota of the control group was used up went from 3.0% to 19.0%" in said


def facts(
    base: dict[str, str], head: dict[str, str], count: int = 6, later: dict[str, str] | None = None
) -> Environment:
    found = []
    for number, pair in enumerate(pairs(count, 0.08)):
        sides = (later, later) if later is not None and number >= count // 2 else (base, head)
        found.append(tuple(replace(one, environment=side) for one, side in zip(pair, sides, strict=True)))
    result = JUDGE.result(Pairs(calibration=(), measured=tuple(found), confirming=()))  # type: ignore[arg-type]
    return environment_of(found, result.step, least=0.02)  # type: ignore[arg-type]


def test_what_it_ran_on_is_compared() -> None:
    same = facts({"gpu": "1x A", "torch": "2.9"}, {"gpu": "1x A", "torch": "2.9"})
    assert (same.facts, same.remarks, same.voids) == ({"gpu": "1x A", "torch": "2.9"}, (), None)
    other = facts({"torch": "2.9"}, {"torch": "2.10"})
    assert other.facts == {"torch": "base 2.9, head 2.10"}
    assert "the change is its as much as the program's" in other.remarks[0]
    assert other.voids is None
    card = facts({"gpu": "1x A"}, {"gpu": "1x B"})
    assert card.voids is not None
    assert "both launches of a pair must run on the same" in card.voids
    first = facts({}, {"device": "NVIDIA H200"})
    assert first.voids is None, "the program moved to a device: that is its change"
    assert "device is base -, head NVIDIA H200" in first.remarks[0]
    moved = facts({"gpu": "1x A"}, {"gpu": "1x A"}, later={"gpu": "1x B"})
    assert moved.voids is None
    assert "gpu was 1x A, 1x B in the course of the comparison" in moved.remarks[0]


def test_a_machine_that_others_use_is_told() -> None:
    def remarks(share: float) -> tuple[str, ...]:
        found = with_counters(pairs(6), {"others_share": (share, share)})
        return JUDGE.result(Pairs(calibration=CALIBRATION, measured=found, confirming=())).remarks

    (said,) = remarks(0.5)
    assert said.startswith("other programs used 50% of the processors' time meanwhile")
    assert remarks(0.1) == ()
