"""nvlink_stall: far below the links, at them, late ranks, contention, latency, protocols, what cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.load import load
from perfscope.analyzers.trace import RECORDED, Trace
from tests.analyzers.ranks.build import collective, named
from tests.build import TraceBuilder

H100 = "NVIDIA H100 80GB HBM3"
SIMPLE = "ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE(x)"
LL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
NVLS = "ncclDevKernel_AllReduce_Sum_bf16_NVLS_SIMPLE(x)"
ELEMENTS = 128_571_429
"""bfloat16: all-reduced by 8, a device sends 450 MB, one millisecond of NVLink 4."""


def outcome_of(traces: list[Trace]) -> Outcome:
    return analyze(traces, ["nvlink_stall"])["nvlink_stall"]


def job(
    core: float,
    *,
    late: float = 0.0,
    device: str = H100,
    kernel: str = SIMPLE,
    size: int = 8,
    first: int = 0,
    elements: int = ELEMENTS,
    beside: float = 0.0,
    sharing: float = 0.0,
    span: float = 50_000.0,
) -> list[Trace]:
    """Ranks whose large all-reduce takes ``core`` us; one small one of 20 us before it, rank 1 ``late`` to both."""
    members = range(first, first + size)
    traces = []
    for rank in members:
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.device(0, device)
        build.step(0, 0, span)
        lag = late if rank == first + 1 else 0.0
        collective(build, 100 + lag, 100 + late + 20, elements=256, kernel=kernel, ranks=members, sequence=0)
        begin, end = 1_000 + late + lag, 1_000 + 2 * late + core
        collective(build, begin, end, elements=elements, kernel=kernel, ranks=members, sequence=1)
        if beside:
            build.kernel("gemm", begin, begin + beside * core)
        if sharing:
            collective(build, begin, begin + sharing * core, operation="all_gather", elements=-1, ranks=members,
                       stream=30, group="1", sequence=1)  # fmt: skip
        traces.append(named(build.build(), world=first + size))
    return traces


def test_a_collective_at_a_tenth_of_its_links_is_found() -> None:
    (finding,) = outcome_of(job(10_000)).findings
    assert finding.subject == "collectives far below their links"
    assert "1 all_reduce in a group of 8 reach 45.0 GB/s of the 450 GB/s of NVLink 4" in finding.title
    assert "takes 10.0 ms after the last rank came, where 1.02 ms are ideal" in finding.title
    assert (finding.basis, finding.severity) == ("modelled", "high")
    assert finding.cost_ns == pytest.approx(10_000_000 - 1_020_000, abs=10)
    assert finding.ranks == tuple(range(8))


@pytest.mark.parametrize(("core", "kernel", "status"), [
    (1_980, SIMPLE, "clean"), (2_100, SIMPLE, "flagged"), (3_900, LL, "clean"), (4_200, LL, "flagged"),
])  # fmt: skip
def test_the_limit_is_twice_the_ideal_and_four_times_with_ll(core: float, kernel: str, status: str) -> None:
    assert outcome_of(job(core, kernel=kernel)).status == status


def test_waiting_for_a_late_rank_is_no_stall() -> None:
    assert outcome_of(job(1_100, late=15_000)).status == "clean"


def test_what_runs_beside_it_may_explain_it() -> None:
    assert outcome_of(job(10_000, beside=0.19)).status == "flagged"
    assert outcome_of(job(10_000, beside=0.21)).status == "clean"
    assert outcome_of(job(10_000, sharing=0.19)).status == "flagged"
    assert outcome_of(job(10_000, sharing=0.21)).status == "clean"
    assert outcome_of(job(10_000, sharing=0.15, beside=0.15)).status == "flagged"  # side by side with each other


def test_latency_is_no_stall() -> None:
    # 18 MB sent in 40 us of link time, twice the latency: small ones are slow whatever the links
    assert outcome_of(job(5_000, elements=ELEMENTS // 25)).status == "clean"


def test_nvls_is_held_to_what_it_sends() -> None:
    # 257 MB x (1 + 1/8) take 0.64 ms, not the 1 ms of a ring: 1.5 ms are too long for it and not for a ring
    assert outcome_of(job(1_500, kernel=NVLS, span=20_000)).status == "flagged"
    assert outcome_of(job(1_500, span=20_000)).status == "clean"


def test_little_of_the_steps_is_clean() -> None:
    assert outcome_of(job(3_000, span=98_900)).status == "flagged"  # 1.98 ms of 98.9 ms
    assert outcome_of(job(3_000, span=99_200)).status == "clean"


def test_where_it_cannot_be_told_it_abstains() -> None:
    traces = job(10_000)
    assert "wait or stall, it cannot be told: one rank alone" in (outcome_of(traces[:1]).reason or "")
    assert "counters of the links, which would tell, are not recorded" in (outcome_of(traces[:1]).reason or "")
    assert "ranks of the groups are missing" in (outcome_of(traces[:7]).reason or "")
    assert "groups span nodes with different numbers of ranks" in (
        outcome_of(job(10_000, first=4, size=7)).reason or ""
    )
    assert "what joins the nodes is not recorded" in (outcome_of(job(10_000, first=4)).reason or "")
    assert "links between these devices are not known" in (outcome_of(job(10_000, device="NVIDIA L4")).reason or "")
    assert "sizes of the collectives are not recorded" in (outcome_of(sizeless()).reason or "")
    assert outcome_of([TraceBuilder().build()]).reason == f"not recorded: {RECORDED['collectives']}"


def sizeless() -> list[Trace]:
    builds = [TraceBuilder(rank=rank) for rank in range(2)]
    for build in builds:
        build.device(0, H100)
        collective(build, 0, 100, elements=-1, ranks=range(2), sequence=1)
    return [build.build() for build in builds]


@pytest.mark.corpus
def test_a_real_job_on_nvlink_is_clean(corpus: Path) -> None:
    files = sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_*"))
    assert outcome_of([trace for file in files for trace in load(file)]).status == "clean"
