from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.load import load_one
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.rules.exposed_communication import operation_of_kernel
from perfscope.analyzers.trace import Trace
from tests.analyzers.ranks.build import named, rank_set
from tests.build import TraceBuilder

RULE = load_rule("exposed_communication")
NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def _judge(b: TraceBuilder) -> Outcome:
    return judge(RULE, b.build())


def _judge_trace(trace: Trace) -> Outcome:
    return judge(RULE, trace)


def _step(exposed: float) -> TraceBuilder:
    """Computation 0 to 1000 us beside an all-reduce from 500 us that runs ``exposed`` us longer."""
    b = TraceBuilder()
    b.kernel("gemm", 0, 1000)
    b.kernel(NAME, 500, 1000 + exposed, stream=20, communication=True)
    return b


def test_flagged_with_what_no_kernel_covers():
    outcome = _judge(_step(200))
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis, finding.cost_ns) == (
        "flagged", "all_reduce", "measured", 200_000,
    )  # fmt: skip
    assert finding.where.kernel == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert finding.evidence[0]["exposed_ns"] == 200_000
    assert finding.evidence[0]["duration_ns"] == 700_000
    assert "One rank cannot tell transfer from waiting" in finding.advice


def test_the_threshold_is_a_twentieth_of_the_devices_span():
    assert _judge(_step(1000 / 19)).status == "flagged"
    assert _judge(_step(1000 / 19 - 0.1)).status == "clean"


def test_a_hidden_collective_is_clean():
    b = TraceBuilder()
    b.kernel("gemm", 0, 1000)
    b.kernel(NAME, 100, 1000, stream=20, communication=True)
    assert _judge(b).status == "clean"


def test_no_collective_is_clean():
    b = TraceBuilder()
    b.kernel("gemm", 0, 1000)
    assert _judge(b).status == "clean"


def test_group_and_size_come_from_the_collectives_table():
    b = _step(200)
    b.row("collectives", start_ns=500_000, end_ns=1_200_000, name=b.code("reduce_scatter"), kernel=1,
          group=b.code("dp"), group_size=8, elements_in=1024)  # fmt: skip
    (finding,) = _judge(b).findings
    assert finding.subject == "reduce_scatter"
    assert (finding.evidence[0]["group"], finding.evidence[0]["ranks"], finding.evidence[0]["elements_in"]) == (
        "dp", 8, 1024,
    )  # fmt: skip


def test_two_operations_are_two_findings_that_share_no_time():
    b = _step(200)
    b.kernel("ncclDevKernel_SendRecv(x)", 1100, 1300, stream=21, communication=True)
    assert {f.subject: f.cost_ns for f in _judge(b).findings} == {"all_reduce": 200_000, "send_recv": 100_000}


def test_an_operation_with_less_than_one_percent_gets_no_finding():
    for exposed, subjects in ((12.2, {"all_reduce", "send_recv"}), (12.0, {"all_reduce"})):
        b = _step(200)
        b.kernel("ncclDevKernel_SendRecv(x)", 1200, 1200 + exposed, stream=21, communication=True)
        assert {finding.subject for finding in _judge(b).findings} == subjects


def test_collectives_of_the_host_are_not_judged():
    b = TraceBuilder(recorded=frozenset({"host_ops", "collectives"}))
    b.annotation("gloo:all_reduce", 0, 100)
    b.row("collectives", start_ns=0, end_ns=100_000, name=b.code("all_reduce"), slice=0)
    assert _judge(b).status == "abstained"


def test_a_single_cpu_process_has_no_collective():
    b = TraceBuilder(recorded=frozenset({"host_ops"}))
    b.op("aten::add", 0, 10)
    assert _judge(b).status == "clean"


def test_abstains_where_nothing_was_recorded():
    assert _judge(TraceBuilder(recorded=frozenset())).status == "abstained"


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        (NAME, "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", "send_recv"),
        ("ncclDevKernel_Generic(x)", "communication"),
        ("my_all_to_all_kernel", "communication"),
    ],
)
def test_the_operation_in_a_kernels_name(kernel, operation):
    assert operation_of_kernel(kernel) == operation


def _ranks(late: float = 2_000.0, *, world: int | None = None, exposed: float = 0.0) -> list[Trace]:
    """Three ranks, the second of which comes ``late`` us late to both all-reduces of 1500 us."""

    def beside(b: TraceBuilder, rank: int) -> None:
        b.kernel("gemm", 0, 900)
        if exposed:  # a kernel that only rank 0 shows, of another kind
            b.kernel("ncclDevKernel_SendRecv(x)", 1000, 1000 + (exposed if rank == 0 else 0.0), stream=21,
                     communication=True)  # fmt: skip

    return rank_set([[0.0, late, 0.0]] * 2, core=1500.0, jitter_us=0, extra=beside, world=world)


def test_ranks_are_one_finding_whose_parts_sum_to_what_one_rank_measured():
    traces = _ranks()
    alone = max(finding.cost_ns for trace in traces for finding in _judge_trace(trace).findings)
    outcome = analyze(traces, ["exposed_communication"])["exposed_communication"]
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.ranks) == ("flagged", "all_reduce", (0, 1, 2))
    for row in finding.evidence:
        assert row["exposed_ns"] == sum(
            row[part] for part in ("waiting_ns", "together_ns", "transfer_ns", "unclear_ns", "unmatched_ns")
        )
    worst = finding.evidence[0]
    assert (worst["exposed_ns"], worst["waiting_ns"], worst["mostly_for"], worst["transfer_ns"]) == (
        alone, 4_000_000, 1, 3_000_000,
    )  # fmt: skip
    # what is straggler's is not counted again
    assert finding.cost_ns == 3_000_000
    assert "4.00 ms waiting for rank 1, which came late, 3.00 ms the transfer itself" in finding.title
    assert finding.advice.startswith("Waiting ends where the late rank comes in time: `straggler` says which")
    assert "One rank cannot tell" not in finding.advice


def test_ranks_in_time_are_told_to_overlap():
    (finding,) = analyze(_ranks(0.0), ["exposed_communication"])["exposed_communication"].findings
    assert (finding.cost_ns, finding.evidence[0]["waiting_ns"]) == (3_000_000, 0)
    assert finding.advice.startswith("DDP hides it behind the backward pass")
    assert "straggler" not in finding.advice


def test_the_cost_beside_the_stragglers_does_not_count_a_moment_twice():
    found = analyze(_ranks(), ["exposed_communication", "straggler"])
    (exposed,), (late,) = found["exposed_communication"].findings, found["straggler"].findings
    assert late.ranks == (1,)
    assert exposed.cost_ns + late.cost_ns == exposed.evidence[0]["exposed_ns"] == 7_000_000


def test_missing_ranks_leave_the_transfer_unclear():
    (finding,) = analyze(_ranks()[:2], ["exposed_communication"])["exposed_communication"].findings
    assert (finding.evidence[0]["transfer_ns"], finding.evidence[0]["unclear_ns"]) == (0, 3_000_000)
    assert "waiting or transfer (clocks agree to 0 ns, and ranks are missing)" in finding.title


def test_a_kind_that_no_other_rank_shows_is_said_to_be_unmatched():
    found = analyze(_ranks(exposed=2_000.0), ["exposed_communication"])["exposed_communication"]
    by_kind = {finding.subject: finding for finding in found.findings}
    assert sorted(by_kind) == ["all_reduce", "send_recv"]
    assert [(row["group"], row["unmatched_ns"]) for row in by_kind["send_recv"].evidence] == [
        ("not matched", 2_000_000)
    ]
    assert "2.00 ms of collectives that no other rank shows" in by_kind["send_recv"].title


def test_one_rank_alone_keeps_its_own_finding_and_a_clean_one_stays_clean():
    (finding,) = analyze(_ranks()[:1], ["exposed_communication"])["exposed_communication"].findings
    assert "One rank cannot tell" in finding.advice
    b = TraceBuilder()
    b.kernel("gemm", 0, 1000)
    b.kernel(NAME, 100, 1000, stream=20, communication=True)
    b.row("collectives", start_ns=100_000, end_ns=1_000_000, name=b.code("all_reduce"), kernel=1)
    assert analyze([b.build()], ["exposed_communication"])["exposed_communication"].status == "clean"


def test_a_trace_outside_of_the_job_still_has_its_say():
    other = named(_ranks()[0], world=2, path="other.json")
    found = analyze([*_ranks(), other], ["exposed_communication"])["exposed_communication"].findings
    assert [(finding.subject, "One rank cannot tell" in finding.advice) for finding in found] == [
        ("all_reduce", True), ("all_reduce", False),
    ]  # fmt: skip


@pytest.mark.corpus
def test_megatron_ranks(corpus: Path):
    traces = [load_one(path) for path in sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_*"))]
    alone = [finding for trace in traces for finding in _judge_trace(trace).findings]
    found = analyze(traces, ["exposed_communication", "straggler"])
    (finding,) = found["exposed_communication"].findings
    assert finding.evidence[0]["exposed_ns"] == max(one.cost_ns for one in alone) == 495_240_000
    assert (finding.cost_ns, finding.evidence[0]["transfer_ns"]) == (51_041_000, 50_099_000)
    (late,) = found["straggler"].findings
    assert finding.cost_ns + late.cost_ns < 495_240_000


@pytest.mark.corpus
def test_torchrec_ranks(corpus: Path):
    traces = [load_one(path) for path in sorted((corpus / "kineto").glob("torchrec__sst_sleep*"))]
    (finding,) = analyze(traces, ["exposed_communication"])["exposed_communication"].findings
    assert (finding.ranks, finding.evidence[0]["mostly_for"]) == ((0, 1, 3), 2)
    assert finding.cost_ns == 36_863_000
    # of 3.03 s nearly all is waiting for the rank that slept: hiding the transfer saves a hundredth of it
    assert 0.98 < finding.evidence[0]["for_it_ns"] / finding.evidence[0]["exposed_ns"] < 1
