"""link_contention: slower with another, at the limits, by chance, with compute, and what cannot be compared."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.digest import reduce_trace
from perfscope.analyzers.ranks.rules.link_contention import rank_sum
from perfscope.model.trace import RECORDED, Trace
from tests.build import TraceBuilder
from tests.ranks.build import collective, named
from tests.rules import compared_by

GATHER = "ncclDevKernel_AllGather_RING_LL(x)"
ALONE = 1_000.0


outcome_of = compared_by("link_contention")


def job(
    beside: list[float],
    alone: list[float],
    *,
    overlap: float = 1.0,
    compute: bool = False,
    step: float = 60_000.0,
    late: float = 0.0,
) -> list[Trace]:
    """Two ranks whose all-reduces take ``beside`` us during an all-gather and ``alone`` us otherwise.

    ``compute``: those during another also overlap with compute. ``late``: rank 1 is late to those during another."""
    traces = []
    for rank in range(2):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.device(0)
        build.step(0, 0, step)
        for number, (core, is_beside) in enumerate(
            [*((item, True) for item in beside), *((item, False) for item in alone)]
        ):
            start = 3_000.0 * number
            lag = late if is_beside else 0.0
            begins, ends = start + lag * rank, start + lag + core
            collective(build, begins, ends, ranks=range(2), sequence=number)
            if is_beside and overlap:
                collective(build, start, start + lag + overlap * core, operation="all_gather", kernel=GATHER, stream=30,
                           ranks=range(2), group="1", sequence=number)  # fmt: skip
            if is_beside and compute:
                build.kernel("gemm", start, ends)
        traces.append(named(build.build(), world=2))
    return traces


def spread(middle: float, count: int = 8) -> list[float]:
    return [middle + 5 * index for index in range(count)]


def test_what_is_slower_beside_another_is_found() -> None:
    (finding,) = outcome_of(job(spread(2_000), spread(ALONE))).findings
    assert finding.subject == "all_reduce with another"
    assert "2.0 times" in finding.title
    assert (finding.basis, finding.severity, finding.ranks) == ("measured", "high", (0, 1))
    assert finding.cost_ns == sum(round(1_000 * (item - 1_017.5)) for item in spread(2_000))
    assert finding.evidence[0]["beside"] == "all_gather of 2 ranks"


@pytest.mark.parametrize(("core", "status"), [(1_190, "clean"), (1_250, "flagged")])
def test_a_fifth_slower_is_the_limit(core: float, status: str) -> None:
    assert outcome_of(job(spread(core), spread(ALONE), step=24_000)).status == status


def test_a_difference_that_chance_makes_is_none() -> None:
    wild = [400.0, 2_600.0, 900.0, 2_500.0, 500.0, 1_600.0]
    assert outcome_of(job(wild, [600.0, 2_400.0, 800.0, 1_000.0, 700.0, 2_000.0])).status == "clean"


def test_waiting_for_a_late_rank_is_no_contention() -> None:
    assert outcome_of(job(spread(ALONE), spread(ALONE), late=900)).status == "clean"


def test_computing_beside_it_may_explain_it() -> None:
    outcome = outcome_of(job(spread(2_000), spread(ALONE), compute=True))
    assert (outcome.status, "nothing to compare" in (outcome.reason or "")) == ("abstained", True)


def test_where_there_is_nothing_to_compare_it_abstains() -> None:
    never = outcome_of(job(spread(ALONE), spread(ALONE), overlap=0))
    assert (never.status, "no two collectives ran at the same time" in (never.reason or "")) == ("abstained", True)
    always = outcome_of(job(spread(2_000), []))
    assert "nothing to compare: no kind of collective ran" in (always.reason or "")
    few = outcome_of(job(spread(2_000, 4), spread(ALONE)))
    assert (few.status, "5 times with another" in (few.reason or "")) == ("abstained", True)
    assert "a single rank" in (outcome_of(job(spread(2_000), spread(ALONE))[:1]).reason or "")
    assert outcome_of([TraceBuilder().build()]).reason == f"not recorded: {RECORDED['collectives']}"


def test_slim_traces_say_the_same() -> None:
    traces = job(spread(2_000), spread(ALONE))
    assert outcome_of([reduce_trace(trace) for trace in traces]).findings == outcome_of(traces).findings


def test_the_rank_sum_is_close_to_the_exact_one() -> None:
    # five above five: one order of C(10, 5) = 252
    assert rank_sum([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]) == pytest.approx(1 / 252, abs=0.003)
    assert rank_sum([1, 1, 1], [1, 1, 1]) == 1.0
    assert rank_sum([], [1]) == 1.0
    values = np.random.default_rng(1).normal(size=(400, 16))
    false = np.mean([rank_sum(value[:8], value[8:]) < 0.05 for value in values])
    assert false < 0.08  # 400 draws of no difference: 5% and three standard errors
