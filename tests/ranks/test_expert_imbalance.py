"""expert_imbalance: a full rank, ranks full in turn, even ones, hidden ones, sizes that are not there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perfscope.model.trace import RECORDED, Trace
from tests.build import TraceBuilder
from tests.ranks.build import collective, named, rank_set
from tests.rules import compared_by

KERNEL = "ncclDevKernel_SendRecv(ncclDevComm*)"


outcome_of = compared_by("expert_imbalance")


def job(
    received: Sequence[Sequence[int]], *, core: float = 2_000.0, hidden: float = 0.0, span: float = 100_000.0
) -> list[Trace]:
    """One all-to-all of ``core`` us for each row; ``received[k][r]``: elements rank ``r`` gets in number ``k``."""
    size = len(received[0])
    traces = []
    for rank in range(size):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.step(0, 0, span)
        for number, row in enumerate(received):
            start = 1_000 + number * 2 * core
            collective(build, start, start + core, operation="all_to_allv", kernel=KERNEL, elements=1000,
                       received=row[rank], ranks=range(size), sequence=number)  # fmt: skip
            if hidden:
                build.kernel("gemm", start, start + hidden * core)
        traces.append(named(build.build(), world=size))
    return traces


def test_the_fullest_rank_is_named() -> None:
    (finding,) = outcome_of(job([[900, 900, 1300, 900]] * 5 + [[1000, 1000, 1000, 2000]])).findings
    assert (finding.subject, finding.ranks, finding.basis) == ("all-to-alls are uneven", (2,), "modelled")
    assert "6 of 6 all-to-alls are uneven" in finding.title
    assert "up to 1.6 times the mean; rank 2 is the fullest in 5 of them" in finding.detail
    # 2 ms x (1 - mean / most): 5 x (1 - 1000 / 1300) + (1 - 1250 / 2000)
    assert finding.cost_ns == pytest.approx(2e6 * (5 * 300 / 1300 + 0.375), abs=10)
    row = finding.evidence[0]
    assert (row["fullest_rank"], row["elements_most"], row["elements_mean"], row["emptiest_rank"]) == (3, 2000, 1250, 0)


def test_ranks_that_are_full_in_turn_are_all_named() -> None:
    turns = [[2000 if rank == number else 1000 for rank in range(4)] for number in range(4)]
    (finding,) = outcome_of(job(turns)).findings
    assert finding.ranks == (0, 1, 2, 3)
    assert "ranks are the fullest in turn" in finding.detail


def test_what_routers_accept_is_clean() -> None:
    assert outcome_of(job([[950, 950, 1240, 860]] * 20)).status == "clean"
    assert outcome_of(job([[1000] * 4] * 20)).status == "clean"


def test_what_computing_hides_costs_nothing() -> None:
    assert outcome_of(job([[900, 900, 1300, 900]] * 6, hidden=0.9)).status == "clean"


def test_little_of_the_steps_is_clean() -> None:
    # 6 x 2 ms x 3/13 = 2.77 ms
    assert outcome_of(job([[900, 900, 1300, 900]] * 6, span=138_000)).status == "flagged"
    assert outcome_of(job([[900, 900, 1300, 900]] * 6, span=139_000)).status == "clean"


def test_without_sizes_or_ranks_it_abstains() -> None:
    assert "is not recorded, or a rank is missing" in (outcome_of(job([[-1] * 4] * 3)).reason or "")
    assert "is not recorded, or a rank is missing" in (outcome_of(job([[900, 900, 1300, 900]] * 3)[1:]).reason or "")
    assert "a single rank" in (outcome_of(job([[900, 900, 1300, 900]])[:1]).reason or "")
    assert outcome_of([TraceBuilder().build()]).reason == f"not recorded: {RECORDED['collectives']}"


def test_a_job_without_all_to_alls_has_nothing_to_judge() -> None:
    assert outcome_of(rank_set([[0.0, 0.0]])).status == "abstained"


def host_job(received: Sequence[Sequence[int]]) -> list[Trace]:
    """As `job`, on hosts: the shapes of the op have the amounts, in rows of four elements."""
    traces = []
    for rank in range(len(received[0])):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.step(0, 0, 100_000)
        for number, row in enumerate(received):
            start = 1_000 + number * 4_000
            shapes = f"[[{row[rank]}, 4], [1000, 4], [], [], [], [], []]"
            build.op("c10d::alltoall_base_", start, start + 100, shapes=shapes)
            build.annotation("gloo:all_to_all", start + 10, start + 2_000, tid=2)
            build.row("collectives", start_ns=(start + 10) * 1000, end_ns=(start + 2_000) * 1000,
                      name=build.code("all_to_all"), slice=len(build.tables["slices"]) - 1)  # fmt: skip
        traces.append(named(build.build(), world=len(received[0])))
    return traces


def test_hosts_are_judged_by_shapes_without_a_time() -> None:
    (finding,) = outcome_of(host_job([[1000, 1000, 1000, 1000], [500, 500, 2000, 1000]])).findings
    assert (finding.basis, finding.cost_ns, finding.ranks) == ("structural", None, (2,))
    assert finding.title == "1 of 2 all-to-alls are uneven"
    (row,) = finding.evidence
    assert (row["elements_most"], row["elements_mean"], row["elements_least"]) == (8000, 4000, 2000)
    assert outcome_of(host_job([[1000, 1000, 1000, 1240]])).status == "clean"
    assert "is not recorded, or a rank is missing" in (outcome_of(host_job([[500, 500, 2000, 1000]])[1:]).reason or "")


def test_compiled_programs_abstain() -> None:
    build = TraceBuilder(rank=0)
    build.row("hlo_ops", start_ns=0, end_ns=1, name=build.code("all-to-all.1"), encloses=False, asynchronous=False)
    assert "have a fixed size" in (outcome_of([build.build()]).reason or "")
