"""Sets of launches: counts by their ranges, findings of most of them, kernels with a probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.run_sets import Launch, RunSet, launch_of
from perfscope.analyzers.compare.runs.sets import (
    NOT_IN_TURNS,
    SAME_ORDER,
    SetsComparison,
    Turns,
    compare_sets,
    judge_time,
    of_most,
    turns_of,
)
from perfscope.analyzers.compare.statistics import estimators
from perfscope.model.documents.run import Run
from perfscope.model.errors import UsageError
from perfscope.model.finding import Finding, Outcome, Where
from perfscope.model.trace import Trace
from tests.compare.runs import assert_sums, gpu_run, host_run

IN_TURNS = "BHHBBHHBBHHB"
IN_BLOCKS = "BBBBBBHHHHHH"


class Job:
    """Runs that were never on a disk: their traces by the path they would have."""

    def __init__(self) -> None:
        self.traces: dict[Path, list[Trace]] = {}

    def read(self, run: Path) -> list[Trace]:
        return self.traces[run]

    def launch(self, trace: Trace, at: int, *, commit: str = "c0ffee", cpu: str = "some CPU") -> Launch:
        """One run, the ``at``-th of all."""
        run = Path(f"20260101-{at:06}-train-abcd")
        self.traces[run] = [trace]
        manifest = Run(
            id=run.name, name="train", created_utc=f"2026-01-01T00:00:{at:02}+00:00", command=("train.py",),
            state="finished", git={"commit": commit, "dirty": False}, platform={"cpu": cpu}, python="3.11.7",
        )  # fmt: skip
        return launch_of(run, manifest, [trace])

    def compared(
        self, base: Sequence[Trace], head: Sequence[Trace], order: str = IN_TURNS, **of_head: str
    ) -> SetsComparison:
        """The two sides, launched in this order."""
        places = [[at for at, arm in enumerate(order) if arm == one] for one in "BH"]
        left = [self.launch(trace, at) for trace, at in zip(base, places[0], strict=False)]
        right = [self.launch(trace, at, **of_head) for trace, at in zip(head, places[1], strict=False)]
        sides = RunSet(path="base", launches=tuple(left)), RunSet(path="head", launches=tuple(right))
        return compare_sets(*sides, read=self.read)


def launches(count: int = 6, *, slow_us: float = 0.0, seed: int = 0, item: bool = False) -> list[Trace]:
    """Runs whose product takes 100 us, a few more or less, and ``slow_us`` more."""
    rng = np.random.default_rng(seed)
    return [gpu_run(steps=8, slow_us=slow_us + float(rng.normal(0, 1)), item=item) for _ in range(count)]


class TestSets:
    def test_one_program_is_quiet(self) -> None:
        found = Job().compared(launches(seed=1), launches(seed=2))
        assert not any(cause.exact for cause in found.comparison.causes)
        assert {one.verdict for one in found.kernels} == {"inconclusive"}
        assert not any(one.is_worse for one in found.comparison.findings)
        assert found.comparison.gates(["regression", "finding:low"]) == ()
        assert_sums(found.comparison)

    def test_a_slower_kernel_comes_first_by_several_launches(self) -> None:
        found = Job().compared(launches(seed=1), launches(seed=2, slow_us=30))
        assert (found.comparison.causes[0].place, found.comparison.causes[0].exact) == ("train.py:10", False)
        first = found.kernels[0]
        assert (first.name, first.verdict) == ("aten::mm at train.py:10", "regression")
        assert first.change_ns == pytest.approx(30_000, rel=0.1)
        assert {one.verdict for one in found.kernels[1:]} == {"inconclusive"}
        back = Job().compared(launches(seed=2, slow_us=30), launches(seed=1))
        assert (back.kernels[0].name, back.kernels[0].verdict) == (first.name, "improvement")

    def test_what_can_be_counted_stands_before_times(self) -> None:
        found = Job().compared(launches(seed=1), launches(seed=2, slow_us=30, item=True))
        assert found.comparison.headline == "regression"
        assert (found.comparison.causes[0].place, found.comparison.causes[0].exact) == ("train.py:11", True)
        syncs = {one.result.name: one.result for one in found.comparison.exact}["host syncs per step"]
        assert (syncs.base, syncs.head, syncs.pairs) == (0, 1, 6)

    def test_a_count_that_differs_among_launches_of_a_side_is_not_the_programs(self) -> None:
        mixed = [*launches(3, seed=1), *launches(3, seed=3, item=True)]
        found = Job().compared(mixed, launches(seed=2, item=True))
        syncs = {one.result.name: one.result for one in found.comparison.exact}["host syncs per step"]
        assert syncs.verdict == "inconclusive"
        assert any("differs between launches of base" in remark for remark in syncs.remarks)
        assert found.comparison.gates(["regression"]) == ()
        assert not any(part.counts_differ for cause in found.comparison.causes for part in cause.parts)

    def test_few_launches_have_no_kernels(self) -> None:
        found = Job().compared(launches(3, seed=1), launches(3, seed=2, slow_us=30))
        assert found.kernels == ()
        assert any("fewer than 4 launches" in remark for remark in found.remarks)

    def test_one_run_against_a_set(self) -> None:
        found = Job().compared(launches(1, seed=1), launches(seed=2, item=True), "BHHHHHH")
        assert found.comparison.headline == "regression"
        assert found.comparison.step_time is not None
        assert not found.comparison.step_time.gates

    def test_blocks_of_launches_fail_no_build_by_time(self) -> None:
        slow = [host_run(scale=1.5) for _ in range(6)]
        found = Job().compared([host_run() for _ in range(6)], slow, IN_BLOCKS)
        assert found.comparison.step_time is not None
        assert (found.comparison.step_time.known, found.comparison.step_time.gates) == ("sets of runs", False)
        assert found.comparison.inconclusive == ("step time (profiled)",)
        assert [one.pair for one in found.launches] == list(range(len(found.launches)))

    def test_other_machines_and_commits_fail_no_build(self) -> None:
        found = Job().compared(launches(seed=1), launches(seed=2), cpu="another CPU")
        assert found.comparison.step_time is not None
        assert not found.comparison.step_time.gates
        assert "different machines" in found.comparison.step_time.remarks[0]
        assert found.environment["cpu"] == "base some CPU, head another CPU"
        job = Job()
        two = tuple(job.launch(trace, at, commit=f"c{at}") for at, trace in enumerate(launches(2)))
        one = (job.launch(gpu_run(), 5),)
        mixed = compare_sets(RunSet(path="a", launches=two), RunSet(path="b", launches=one), read=job.read)
        assert mixed.commits == (None, "c0ffee")
        assert mixed.comparison.step_time is not None
        assert any("2 commits" in remark for remark in mixed.comparison.step_time.remarks)

    def test_launches_in_the_order_they_ran(self) -> None:
        found = Job().compared(launches(seed=1), launches(seed=2))
        assert "".join(one.arm[0].upper() for one in found.launches) == IN_TURNS
        assert [one.pair for one in found.launches] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]

    def test_two_kinds(self) -> None:
        job = Job()
        mine = job.launch(gpu_run(), 1)
        other = replace(mine, summary=msgspec.structs.replace(mine.summary, kind="compiled programs"))
        with pytest.raises(UsageError, match="of one kind"):
            compare_sets(RunSet(path="a", launches=(mine,)), RunSet(path="b", launches=(other,)), read=job.read)


def finding(line: int, cost_ns: int) -> Finding:
    return Finding(
        subject="s", title="t", severity="low", basis="measured", advice="a", cost_ns=cost_ns,
        where=Where(file="train.py", line=line),
    )  # fmt: skip


class TestFindingsOfMost:
    def outcomes(self, *found: Finding, reason: str | None = None) -> tuple[Outcome, ...]:
        status = "flagged" if found else "clean" if reason is None else "abstained"
        return (Outcome(rule="r", status=status, reason=reason, findings=found),)  # type: ignore[arg-type]

    def test_what_most_have_with_the_cost_in_the_middle(self) -> None:
        every = [self.outcomes(finding(1, cost), finding(2, 9)) for cost in (5, 7, 100)]
        every += [self.outcomes(), self.outcomes(finding(2, 9))]
        (outcome,) = of_most(every)
        assert [(one.where.line, one.cost_ns) for one in outcome.findings] == [(2, 9), (1, 7)]

    def test_half_is_not_most(self) -> None:
        (outcome,) = of_most([self.outcomes(finding(1, 5)), self.outcomes()])
        assert (outcome.status, outcome.findings) == ("clean", ())

    def test_a_rule_that_often_abstained_did_not_look(self) -> None:
        (outcome,) = of_most([self.outcomes(reason="no stack"), self.outcomes(reason="no stack"), self.outcomes()])
        assert (outcome.status, outcome.reason) == ("abstained", "no stack")
        (outcome,) = of_most([self.outcomes(reason="no stack"), self.outcomes(), self.outcomes()])
        assert outcome.status == "clean"


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


INTERLEAVED = "BH HB BH HB BH HB BH HB"


def launch_times(
    change: float, *, spread: float = 0.01, seed: int = 3, count: int = 8
) -> tuple[list[float], list[float]]:
    """Times of launches in ns: pairs share what the machine does, head is longer by ``change``."""
    rng = np.random.default_rng(seed)
    machine = 1e7 * np.exp(rng.normal(0, 0.1, count))
    base, head = (machine * np.exp(rng.normal(0, spread, count)) for _ in range(2))
    return base.tolist(), (head * (1 + change)).tolist()


class TestJudge:
    def test_pairs_in_turns_may_fail_a_build(self) -> None:
        found = judge_time("step time", *launch_times(0.05), turns(INTERLEAVED))
        assert (found.verdict, found.known, found.gates, found.pairs) == ("regression", "paired launches", True, 8)
        assert judge_time("step time", *launch_times(-0.05), turns(INTERLEAVED)).verdict == "improvement"

    def test_the_same_program_is_no_change_or_not_settled(self) -> None:
        assert judge_time("step time", *launch_times(0.0, spread=0.003), turns(INTERLEAVED)).verdict == "no change"

    def test_few_pairs_fail_none(self) -> None:
        base, head = launch_times(0.05, count=4)
        found = judge_time("step time", base, head, turns("BH HB BH HB"))
        assert not found.gates
        assert any("4 pairs" in remark for remark in found.remarks)

    def test_one_side_always_first_fails_none(self) -> None:
        found = judge_time("step time", *launch_times(0.05), turns("BH" * 8))
        assert not found.gates
        assert SAME_ORDER in found.remarks

    def test_another_machine_fails_none(self) -> None:
        found = judge_time(
            "step time", *launch_times(0.05), turns(INTERLEAVED), no_gate="launches ran on different machines"
        )
        assert not found.gates
        assert found.remarks[0] == "launches ran on different machines"

    def test_pairs_that_point_in_both_directions_are_not_settled(self) -> None:
        base = [1e7] * 8
        head = [1e7 * factor for factor in (1.5, 1.45, 1.55, 1.5, 0.999, 1.48, 1.52, 0.998)]
        found = judge_time("step time", base, head, turns(INTERLEAVED))
        assert found.p is not None
        assert found.p < 0.05
        assert found.verdict == "regression"  # two of eight that did not change leave sign flips at 1.6%
        found = judge_time("step time", base, [*head[:4], 0.9e7, 0.95e7, *head[6:]], turns(INTERLEAVED))
        assert found.verdict == "inconclusive"

    def test_welch_is_the_textbooks(self) -> None:
        base, head = [1.0e7, 1.1e7, 1.05e7, 0.98e7], [1.3e7, 1.25e7, 1.4e7]
        found = judge_time("step time", base, head, turns("BBBB HHH"))
        one, other = np.log(base), np.log(head)
        parts = one.var(ddof=1) / 4, other.var(ddof=1) / 3
        freedom = math.floor(sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2))
        t = (other.mean() - one.mean()) / math.sqrt(sum(parts))
        assert found.p == pytest.approx(estimators.two_sided_p(t, freedom))
        assert (found.verdict, found.known, found.gates) == ("regression", "sets of runs", False)
        assert NOT_IN_TURNS in found.remarks

    def test_shown_values_of_launches_that_are_no_pairs_differ_as_the_effect_does(self) -> None:
        """Medians alone say slower (1.79 to 1.89 ms), the mean of the logarithms faster."""
        base, head = [1.60e6, 1.70e6, 1.79e6, 2.60e6, 2.70e6], [1.55e6, 1.60e6, 1.89e6, 2.30e6, 2.50e6]
        found = judge_time("step time", base, head, turns("BBBBB HHHHH"))
        assert found.effect is not None
        assert found.effect < 0 < np.median(head) / np.median(base) - 1
        assert isinstance(found.base, float)
        assert isinstance(found.head, float)
        assert found.head / found.base - 1 == pytest.approx(found.effect)

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


@pytest.mark.slow
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
