from __future__ import annotations

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.rules.exposed_communication import operation_of_kernel
from tests.build import TraceBuilder

RULE = load_rule("exposed_communication")
NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def _judge(b: TraceBuilder) -> Outcome:
    return judge(RULE, b.build())


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
