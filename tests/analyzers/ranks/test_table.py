"""The table of collectives: waits and cores that sum, bandwidth by the factors of nccl-tests, caveats."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.collectives_section import NO_COLLECTIVES, collectives_section
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.load import load
from perfscope.analyzers.ranks.sets import rank_sets
from perfscope.analyzers.ranks.table import table_of
from tests.analyzers.ranks.build import KERNEL, collective, rank_set
from tests.build import TraceBuilder

LATE = [[0.0, 100.0, 0.0, 0.0], [0.0, 0.0, 300.0, 0.0], [50.0, 0.0, 0.0, 20.0]]


def test_waits_and_cores_sum_to_the_durations() -> None:
    (found,) = rank_sets(rank_set(LATE, jitter_us=0))
    table = table_of(found)
    (kind,) = table.kinds
    assert (kind.operation, kind.count, kind.core_ns, kind.axis) == ("all_reduce", 3, 1_500_000, "DP")
    assert (kind.algorithm, kind.protocol, kind.message_bytes) == ("RING", "LL", 2_000_000)
    assert kind.wait_ns == {0: 400_000, 1: 350_000, 2: 150_000, 3: 430_000}
    for total in table.ranks:
        assert total.wait_ns + total.core_ns == total.duration_ns == kind.duration_ns[total.rank]
        assert total.exposed_ns == total.duration_ns
    assert [total.last for total in table.ranks] == [1, 1, 1, 0]


def test_bandwidth_is_of_the_core() -> None:
    (found,) = rank_sets(rank_set(LATE, jitter_us=0))
    (kind,) = table_of(found).kinds
    assert kind.algorithm_bandwidth == pytest.approx(2_000_000 / 500e-6)
    assert kind.bus_bandwidth == pytest.approx(1.5 * 2_000_000 / 500e-6)


@pytest.mark.parametrize(
    ("operation", "elements", "received", "message", "factor"),
    [
        ("_allgather_base", 1000, 4000, 4000, 0.75),
        ("_allgather_base", 1000, -1, 4000, 0.75),
        ("_reduce_scatter_base", 4000, 1000, 4000, 0.75),
        ("all_to_allv", 1000, 1000, 1000, 0.75),
        ("broadcast", 1000, 1000, 1000, 1.0),
        ("barrier", 1, 1, 1, None),
    ],
)
def test_messages_and_factors_are_those_of_nccl_tests(
    operation: str, elements: int, received: int, message: int, factor: float | None
) -> None:
    builds = [TraceBuilder(rank=rank) for rank in range(4)]
    for build in builds:
        collective(build, 0, 100, operation=operation, elements=elements, received=received, dtype="Float",
                   ranks=range(4), sequence=1)  # fmt: skip
    (found,) = rank_sets([build.build() for build in builds])
    (kind,) = table_of(found).kinds
    assert kind.message_bytes == 4 * message
    assert kind.bus_bandwidth == (None if factor is None else pytest.approx(factor * 4 * message / 100e-6))


def test_caveats_stand_beside_the_bandwidth() -> None:
    def kinds(kernel: str, device: str, members: int = 2) -> tuple[str, ...]:
        builds = [TraceBuilder(rank=rank) for rank in range(2)]
        for build in builds:
            build.device(0, device)
            collective(build, 0, 100, kernel=kernel, ranks=range(members), sequence=1)
        (found,) = rank_sets([build.build() for build in builds])
        return table_of(found).kinds[0].caveats

    assert kinds(KERNEL, "NVIDIA H100 80GB HBM3") == ()
    assert "NVLS reduces in the switch" in kinds("ncclDevKernel_AllReduce_Sum_bf16_NVLS_SIMPLE", "NVIDIA H200")[0]
    assert "no links but PCIe" in kinds(KERNEL, "NVIDIA L4")[0]
    assert "members of the group are missing" in kinds(KERNEL, "NVIDIA H100 80GB HBM3", members=4)[0]


def test_a_group_that_nobody_recorded_has_no_factor_while_ranks_are_missing() -> None:
    (found,) = rank_sets(rank_set(LATE, recorded=False, world=8))
    (kind,) = table_of(found).kinds
    assert kind.algorithm_bandwidth is not None
    assert kind.bus_bandwidth is None
    assert "who is in the group is not recorded" in kind.caveats[0]


def test_what_computing_hides_is_not_exposed() -> None:
    def busy(build: TraceBuilder, rank: int) -> None:
        build.kernel("gemm", 10_000, 10_250)

    (found,) = rank_sets(rank_set(LATE, extra=busy, jitter_us=0))
    total = table_of(found).ranks[0]
    assert total.exposed_ns == total.duration_ns - 250_000


def test_the_section_needs_two_ranks_and_survives_what_breaks() -> None:
    traces = rank_set(LATE)
    assert collectives_section(traces[:1]) == NO_COLLECTIVES
    section = analyze(traces, []).collectives
    (job,) = section.jobs
    assert (job.label, job.matched, job.unmatched, job.missing) == ("ranks 0-3 of 4", 3, 0, ())
    assert [total.rank for total in job.ranks] == [0, 1, 2, 3]
    broken = rank_set(LATE)
    broken[1].strings.clear()
    (problem,) = collectives_section(broken).problems
    assert "could not be summed up: IndexError" in problem


@pytest.mark.corpus
def test_every_collective_of_a_real_job_of_eight(corpus: Path) -> None:
    files = sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_*"))
    (found,) = rank_sets([trace for file in files for trace in load(file)])
    assert (len(found.matching.matched), found.matching.alone, found.matching.disagreeing) == (84, 0, 0)
    table = table_of(found)
    print("core of all:", sum(kind.core_ns for kind in table.kinds), "waits:", [one.wait_ns for one in table.ranks])
    assert [(kind.operation, kind.message_bytes, kind.count, kind.axis) for kind in table.kinds] == [
        ("all_reduce", 4 * 2048 * 4096 * 2, 81, "TP"),
        ("all_reduce", 4 * 2048 * 4, 3, "TP"),
    ]
    assert sum(kind.core_ns for kind in table.kinds) == 50_099_000
    waits = [191_092_000, 431_207_000, 363_226_000, 422_291_000, 445_141_000, 440_829_000, 213_747_000, 431_766_000]
    assert [one.wait_ns for one in table.ranks] == waits
    for one in table.ranks:  # the kernels' own times, counted without the matching
        kernels = found.job.members[one.rank].trace.rows["kernels"]
        kept = kernels["communication"]
        assert int((kernels["end_ns"] - kernels["start_ns"])[kept].sum()) == one.wait_ns + one.core_ns
    # a ring on NVLink 3 (300 GB/s a direction) reaches two thirds of it with LL at 64 MiB
    assert table.kinds[0].bus_bandwidth == pytest.approx(194.8e9, rel=1e-3)
