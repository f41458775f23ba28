"""Impossible device data is reported, and dependent results are not judged."""

from __future__ import annotations

import pytest

from perfscope.analyzers.doubts import OF_IDLE_TIME, OF_WORK_TIME
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.registry import RULES
from perfscope.analyzers.time import device_doubts, step_accounts
from perfscope.dashboards.report.summary import summarize
from perfscope.model.trace import CallKind, Trace
from tests.build import EVERYTHING, TraceBuilder


def kinds(trace: Trace) -> list[str]:
    return [doubt.kind for doubt in trace.fact(device_doubts)]


def in_a_row(lasting: float, *, kernels: int = 10) -> TraceBuilder:
    """Kernels of one stream that begin 100 us after each other."""
    b = TraceBuilder()
    b.step(0, 0, 100.0 * kernels + 200)
    for number in range(kernels):
        b.op("aten::mm", 5 * number, 5 * number + 4)
        b.launched("gemm", 5 * number, 100 + 100 * number, 100 + 100 * number + lasting, correlation=number + 1)
    return b


def test_kernels_of_one_stream_that_overlap_are_not_believed() -> None:
    trace = in_a_row(200).build()
    assert kinds(trace) == ["overlap"]
    assert trace.fact(step_accounts) == ()
    analysis = analyze(trace)
    assert not analysis.findings()
    assert {outcome.status for outcome in analysis if outcome.rule in OF_IDLE_TIME | OF_WORK_TIME} == {"abstained"}
    summary = summarize(analysis)
    assert summary.facts[0] == analysis.doubts[0].text
    assert (summary.account, summary.devices, summary.explained) == ((), (), "")


@pytest.mark.parametrize(("lasting", "found"), [(105.2, []), (106.5, ["overlap"])])
def test_a_twentieth_of_the_kernel_time_may_overlap(lasting: float, found: list[str]) -> None:
    """Programmatic launches begin before the kernel in front of them has ended."""
    assert kinds(in_a_row(lasting).build()) == found


def test_kernels_of_several_streams_and_of_one_graph_may_overlap() -> None:
    b = TraceBuilder()
    b.step(0, 0, 1000)
    b.call("cudaGraphLaunch", 5, 10, kind=CallKind.GRAPH, correlation=1)
    for number in range(4):
        b.kernel("branch", 20 + number, 400, correlation=1)
    for number in range(4):
        b.launched("gemm", 12 + number, 20, 900, correlation=2 + number, stream=20 + number)
    assert kinds(b.build()) == []


def test_two_launches_of_a_graph_do_not_overlap() -> None:
    b = TraceBuilder()
    b.step(0, 0, 1000)
    for number in range(2):
        b.call("hipGraphLaunch", 5 + 10 * number, 10 + 10 * number, kind=CallKind.GRAPH, correlation=number + 1)
        b.kernel("branch", 20 + 100 * number, 600, correlation=number + 1)
    assert kinds(b.build()) == ["overlap"]


@pytest.mark.parametrize("call", ["cudaLaunchKernel", "hipLaunchKernel"])
def test_launches_without_any_kernel_are_told_with_the_usual_reasons(call: str) -> None:
    b = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links", "op_links"})
    b.step(0, 0, 1000)
    b.op("aten::mm", 0, 900)
    b.call(call, 10, 20)
    b.call("cudaMemcpyAsync", 30, 40, kind=CallKind.COPY)
    analysis = analyze(b.build())
    (doubt,) = analysis.doubts
    assert doubt.kind == "no_device_work"
    assert doubt.text.startswith("2 launches (1 of copies) and no kernel: the profiler got no device activity")
    assert ("CUPTI" in doubt.text) == call.startswith("cuda")
    assert analysis.accounts == ()


def test_a_program_that_launches_nothing_or_captures_a_graph_is_no_doubt() -> None:
    b = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links", "op_links"})
    b.op("aten::mm", 0, 900)
    assert kinds(b.build()) == []
    b.call("cudaStreamBeginCapture", 0, 5, kind=CallKind.OTHER)
    b.call("cudaLaunchKernel", 10, 20)
    assert kinds(b.build()) == []


def burst(*, begins: float, lasts: float = 100) -> Trace:
    """Three steps of 1 ms; the work that each launches at once runs from ``begins`` on in a row."""
    b = TraceBuilder()
    for step in range(3):
        b.step(step, 1000 * step, 1000 * step + 1000)
        b.call("hipGraphLaunch", 1000 * step + 10, 1000 * step + 40, kind=CallKind.GRAPH, correlation=step + 1)
        for number in range(4):
            at = begins + (4 * step + number) * (lasts + 1)
            b.kernel("moe", at, at + lasts, correlation=step + 1)
    return b.build()


def test_work_after_the_steps_of_an_idle_device_leaves_idle_time_open() -> None:
    trace = burst(begins=3200)
    assert kinds(trace) == ["outside_steps"]
    analysis = analyze(trace)
    assert {outcome.status for outcome in analysis if outcome.rule in OF_IDLE_TIME} == {"abstained"}
    assert [step.duration_ns for step in analysis.steps] == [1_000_000] * 3
    assert analysis.top is None or not analysis.top.on_host


def test_a_device_that_is_busy_from_the_first_launch_on_is_only_behind() -> None:
    assert kinds(burst(begins=60, lasts=700)) == []


def test_work_that_begins_before_its_launch_shows_clocks_that_disagree() -> None:
    b = TraceBuilder()
    b.step(0, 0, 1000)
    b.launched("gemm", 500, 440, 700, correlation=1)
    assert kinds(b.build()) == ["clocks"]
    b = TraceBuilder()
    b.step(0, 0, 1000)
    b.launched("gemm", 500, 455, 700, correlation=1)
    assert kinds(b.build()) == [], "45 us are less than a twentieth of the step"


def test_rules_of_device_time_exist() -> None:
    assert not (OF_IDLE_TIME | OF_WORK_TIME) - set(RULES)
    assert not OF_IDLE_TIME & OF_WORK_TIME
