"""pipeline_bubble: too few microbatches, uneven stages, at the limit, transfers, rings, undecidable cases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perfscope.analyzers.digest import reduce_trace
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ranks.rules.pipeline_bubble import bubble_share
from perfscope.model.trace import RECORDED, Trace
from tests.build import TraceBuilder
from tests.ranks.build import collective, named
from tests.rules import compared_by

Message = tuple[str, float, float, int]
"""Operation, start and end in us, peer."""
STEP_US = 1_000.0


def stage(rank: int, messages: Sequence[Message], *, told: bool = True) -> Trace:
    build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
    build.step(0, 0, STEP_US)
    for operation, start, end, _ in messages:
        build.annotation(f"gloo:{operation}", start, end)
    order = sorted(start for _, start, _, _ in messages)
    for operation, start, end, peer in messages:
        build.row(
            "collectives", start_ns=int(1000 * start), end_ns=int(1000 * end), name=build.code(operation), kernel=-1,
            slice=order.index(start), ranks=build.code("[0, 1, 2]"), group_size=3, peer=peer if told else -1,
        )  # fmt: skip
    return named(build.build(), world=3)


def stages(*, told: bool) -> list[Trace]:
    """Stage 1 is busy for 500 us, between its receive and its send; the others for 100 us."""
    return [
        stage(0, [("send", 100, 110, 1)]),
        stage(1, [("recv", 0, 110, 0), ("send", 610, 620, 2)]),
        stage(2, [("recv", 0, 620, 1)], told=told),
    ]


@pytest.mark.parametrize("told", [True, False])
def test_messages_on_the_host_are_not_evaluated(told: bool) -> None:
    outcome = analyze(stages(told=told), ["pipeline_bubble"])["pipeline_bubble"]
    assert (outcome.status, outcome.findings) == ("abstained", ())
    assert "ran on the host (gloo)" in str(outcome.reason)


KERNEL = "ncclDevKernel_SendRecv(ncclDevComm*)"
SPAN = 10_000.0
TRANSFER = 10.0


outcome_of = compared_by("pipeline_bubble")


def job(
    waits: list[float],
    *,
    computes: list[float] | None = None,
    microbatches: int = 4,
    description: str = "PIPELINE_MODEL_PARALLEL_GROUP",
    beside: bool = False,
    ring: bool = False,
    pairs: bool = False,
) -> list[Trace]:
    """One step of ``SPAN`` us of stages that wait ``waits`` us for what they receive first, besides the transfers."""
    size = len(waits)
    traces = []
    for rank, wait in enumerate(waits):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.device(0)
        build.step(0, 0, SPAN)
        neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < size]
        peers = [other % size for other in (rank - 1, rank + 1)] if ring else neighbours
        number, now = microbatches * len(peers), 0.0
        for index in range(number):
            members = sorted((rank, peers[index % len(peers)])) if pairs else range(size)
            for operation, extra in (("recv", 0.0 if index else wait), ("send", 0.0)):
                end = now + TRANSFER + extra
                collective(build, now, end, operation=operation, kernel=KERNEL, ranks=members, group=str(members),
                           description=description)  # fmt: skip
                if beside:
                    build.kernel("gemm", now, end)
                now = end
        build.kernel("gemm", now, now + (computes[rank] if computes else 1_000.0))
        traces.append(named(build.build(), world=size))
    return traces


def test_a_bubble_is_found_with_what_its_microbatches_cannot_avoid() -> None:
    (finding,) = outcome_of(job([4_000, 4_200, 4_200, 4_400])).findings
    assert finding.subject == "bubble of the schedule"
    assert "4 microbatches need at least 43%" in finding.detail
    assert (finding.basis, finding.severity, finding.cost_ns) == ("measured", "high", 4_200_000)
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.evidence[0]["rank"] == 3
    assert "16 leave 16%" in finding.advice


def test_the_slowest_stage_is_named_where_it_explains_the_waiting() -> None:
    (finding,) = outcome_of(job([3_000, 3_000, 3_000, 0], computes=[2_000, 2_000, 2_000, 5_000])).findings
    assert finding.subject == "stages of uneven size"
    assert "Rank 3 computes longest (5.00 ms), which explains 100.0% of it" in finding.detail
    assert "Move layers from rank 3" in finding.advice


@pytest.mark.parametrize(("wait", "status"), [(490, "clean"), (510, "flagged")])
def test_a_twentieth_of_the_steps_is_the_limit(wait: float, status: str) -> None:
    assert outcome_of(job([wait] * 4)).status == status


def test_waiting_behind_which_a_device_computes_is_no_bubble() -> None:
    assert outcome_of(job([4_000] * 4, beside=True)).status == "clean"


def test_transfers_are_no_bubble() -> None:
    # 2 x 32 transfers of 10 us on the stages between, 6.4% of the step, without waits
    assert outcome_of(job([0] * 4, microbatches=32)).status == "clean"


def test_groups_of_two_are_joined_to_a_pipeline() -> None:
    (finding,) = outcome_of(job([4_000] * 4, pairs=True, description="")).findings
    assert finding.ranks == (0, 1, 2, 3)
    assert "4 microbatches" in finding.detail


def test_a_ring_is_a_pipeline_only_if_the_program_says_so() -> None:
    alike = outcome_of(job([4_000] * 4, ring=True, description="CONTEXT_PARALLEL_GROUP"))
    assert (alike.status, "ring attention" in (alike.reason or "")) == ("abstained", True)
    (finding,) = outcome_of(job([4_000] * 4, ring=True)).findings
    assert "microbatches cannot be counted" in finding.detail


def test_where_it_cannot_be_told_it_abstains() -> None:
    traces = job([4_000] * 4)
    assert "a single rank does not show a pipeline" in (outcome_of(traces[:1]).reason or "")
    assert "3 of 4 stages of a pipeline are here" in (outcome_of(traces[:3]).reason or "")
    assert outcome_of([TraceBuilder().build()]).reason == f"not recorded: {RECORDED['collectives']}"
    nameless = [TraceBuilder(rank=rank) for rank in range(2)]
    for build in nameless:
        collective(build, 0, 100, operation="recv", kernel=KERNEL)
    assert "who sends to whom is not recorded" in (outcome_of([build.build() for build in nameless]).reason or "")


def test_slim_traces_say_the_same() -> None:
    traces = job([4_000, 4_200, 4_200, 4_400])
    assert outcome_of([reduce_trace(trace) for trace in traces]).findings == outcome_of(traces).findings


def test_the_share_is_that_of_gpipe() -> None:
    assert bubble_share(4, 4) == pytest.approx(3 / 7)
    assert bubble_share(1, 8) == 0
