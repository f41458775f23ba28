"""Which launches are pairs, and what the time of two sets may say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfscope.analyzers.compare import student
from perfscope.analyzers.compare.sets_time import NOT_IN_TURNS, SAME_ORDER, Turns, judge_time, turns_of


def turns(order: str) -> Turns:
    """From the order in which launches ran: ``BH HB`` is base, head, head, base."""
    arms = order.replace(" ", "")
    base, head = ([f"{place:03}" for place, arm in enumerate(arms) if arm == one] for one in "BH")
    return turns_of(base, head)


class TestTurns:
    def test_neighbours_are_pairs(self) -> None:
        found = turns("BH HB HB BH")
        assert found.pairs == ((0, 0), (1, 1), (2, 2), (3, 3))
        assert (found.alone, found.base_first, found.interleaved, found.either_first) == (0, 2, True, True)

    def test_one_after_the_other_is_not_in_turns(self) -> None:
        found = turns("BBBBBB HHHHHH")
        assert (len(found.pairs), found.alone, found.interleaved) == (1, 10, False)

    def test_one_launch_too_many_has_no_partner(self) -> None:
        found = turns("BH B BH HB BH")
        assert (len(found.pairs), found.alone, found.interleaved) == (4, 1, True)
        assert found.pairs[1] == (2, 1)

    def test_base_always_first(self) -> None:
        assert not turns("BH BH BH BH BH BH").either_first

    def test_nothing_on_a_side(self) -> None:
        assert not turns("BBB").interleaved
        assert not turns("").interleaved


IN_TURNS = "BH HB BH HB BH HB BH HB"


def launches(change: float, *, spread: float = 0.01, seed: int = 3, count: int = 8) -> tuple[list[float], list[float]]:
    """Times of launches in ns: pairs share what the machine does, head is longer by ``change``."""
    rng = np.random.default_rng(seed)
    machine = 1e7 * np.exp(rng.normal(0, 0.1, count))
    base, head = (machine * np.exp(rng.normal(0, spread, count)) for _ in range(2))
    return base.tolist(), (head * (1 + change)).tolist()


class TestJudge:
    def test_pairs_in_turns_may_fail_a_build(self) -> None:
        found = judge_time("step time", *launches(0.05), turns(IN_TURNS))
        assert (found.verdict, found.known, found.gates, found.pairs) == ("regression", "paired launches", True, 8)
        assert judge_time("step time", *launches(-0.05), turns(IN_TURNS)).verdict == "improvement"

    def test_the_same_program_is_no_change_or_not_settled(self) -> None:
        assert judge_time("step time", *launches(0.0, spread=0.003), turns(IN_TURNS)).verdict == "no change"

    def test_few_pairs_fail_none(self) -> None:
        base, head = launches(0.05, count=4)
        found = judge_time("step time", base, head, turns("BH HB BH HB"))
        assert not found.gates
        assert any("4 pairs" in remark for remark in found.remarks)

    def test_one_side_always_first_fails_none(self) -> None:
        found = judge_time("step time", *launches(0.05), turns("BH" * 8))
        assert not found.gates
        assert SAME_ORDER in found.remarks

    def test_another_machine_fails_none(self) -> None:
        found = judge_time("step time", *launches(0.05), turns(IN_TURNS), no_gate="launches ran on different machines")
        assert not found.gates
        assert found.remarks[0] == "launches ran on different machines"

    def test_pairs_that_point_in_both_directions_are_not_settled(self) -> None:
        base = [1e7] * 8
        head = [1e7 * factor for factor in (1.5, 1.45, 1.55, 1.5, 0.999, 1.48, 1.52, 0.998)]
        found = judge_time("step time", base, head, turns(IN_TURNS))
        assert found.p is not None
        assert found.p < 0.05
        assert found.verdict == "regression"  # two of eight that did not change leave sign flips at 1.6%
        found = judge_time("step time", base, [*head[:4], 0.9e7, 0.95e7, *head[6:]], turns(IN_TURNS))
        assert found.verdict == "inconclusive"

    def test_welch_is_the_textbooks(self) -> None:
        base, head = [1.0e7, 1.1e7, 1.05e7, 0.98e7], [1.3e7, 1.25e7, 1.4e7]
        found = judge_time("step time", base, head, turns("BBBB HHH"))
        one, other = np.log(base), np.log(head)
        parts = one.var(ddof=1) / 4, other.var(ddof=1) / 3
        freedom = math.floor(sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2))
        t = (other.mean() - one.mean()) / math.sqrt(sum(parts))
        assert found.p == pytest.approx(student.two_sided_p(t, freedom))
        assert (found.verdict, found.known, found.gates) == ("regression", "sets of runs", False)
        assert NOT_IN_TURNS in found.remarks

    def test_one_launch_against_several(self) -> None:
        found = judge_time("step time", [1e7], [1.1e7, 1.2e7, 1.3e7], turns("B HHH"))
        assert (found.verdict, found.gates, found.p) == ("inconclusive", False, None)
        assert found.effect == pytest.approx(0.2, abs=0.01)

    def test_a_time_that_is_none(self) -> None:
        with pytest.raises(ValueError, match="positive"):
            judge_time("step time", [0.0, 1.0], [1.0, 1.0], turns("BBHH"))

    def test_equal_times_leave_no_spread(self) -> None:
        found = judge_time("step time", [1e7] * 3, [1e7] * 3, turns("BBB HHH"))
        assert found.verdict == "inconclusive"


def test_a_drift_is_taken_for_a_change_by_launches_that_did_not_take_turns() -> None:
    """Why they fail no build: a random walk of 2%, ten launches a side, a program against itself."""
    rng = np.random.default_rng(11)
    orders = {"turns": "BH HB" * 5, "blocks": "B" * 10 + "H" * 10}
    false = dict.fromkeys(orders, 0)
    trials = 300
    for _ in range(trials):
        machine = np.exp(np.cumsum(rng.normal(0, 0.02, 20)) + rng.normal(0, 0.01, 20)) * 1e7
        for name, order in orders.items():
            arms = order.replace(" ", "")
            base, head = ([machine[place] for place, arm in enumerate(arms) if arm == one] for one in "BH")
            verdict = judge_time("step time", base, head, turns(order)).verdict
            false[name] += verdict in ("regression", "improvement")
    assert false["blocks"] > 0.3 * trials
    assert false["turns"] < 0.06 * trials
