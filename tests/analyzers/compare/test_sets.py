"""Sets of launches: counts by their ranges, findings of most of them, kernels with a probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.compare.run_sets import Launch, RunSet, launch_of
from perfscope.analyzers.compare.sets import SetsComparison, compare_sets
from perfscope.analyzers.compare.sets_findings import of_most
from perfscope.analyzers.finding import Finding, Outcome, Where
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import AskedWronglyError
from perfscope.profiler.run import Run
from tests.analyzers.compare.assertions import assert_sums
from tests.analyzers.compare.two_runs import gpu_run, host_run

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
        assert first.change == pytest.approx(30_000, rel=0.1)
        assert {one.verdict for one in found.kernels[1:]} == {"inconclusive"}
        back = Job().compared(launches(seed=2, slow_us=30), launches(seed=1))
        assert (back.kernels[0].name, back.kernels[0].verdict) == (first.name, "improvement")

    def test_what_can_be_counted_stands_before_times(self) -> None:
        found = Job().compared(launches(seed=1), launches(seed=2, slow_us=30, item=True))
        assert found.comparison.headline == "regression"
        assert (found.comparison.causes[0].place, found.comparison.causes[0].exact) == ("train.py:11", True)
        syncs = {one.result.name: one.result for one in found.comparison.exact}["host syncs a step"]
        assert (syncs.base, syncs.head, syncs.pairs) == (0, 1, 6)

    def test_a_count_that_differs_among_launches_of_a_side_is_not_the_programs(self) -> None:
        mixed = [*launches(3, seed=1), *launches(3, seed=3, item=True)]
        found = Job().compared(mixed, launches(seed=2, item=True))
        syncs = {one.result.name: one.result for one in found.comparison.exact}["host syncs a step"]
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
        assert {one.pair for one in found.launches} == {None}

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
        assert "".join(one.side[0].upper() for one in found.launches) == IN_TURNS
        assert [one.pair for one in found.launches] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]

    def test_two_kinds(self) -> None:
        job = Job()
        mine = job.launch(gpu_run(), 1)
        other = replace(mine, summary=replace(mine.summary, kind="compiled programs"))
        with pytest.raises(AskedWronglyError, match="of one kind"):
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
