"""Savings of findings by the critical path: against a machine, and a program, that run without what was removed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.critical_path import (
    bounded_by_path,
    parse_hypothesis,
    saved_on_path,
    what_if,
)
from perfscope.analyzers.critical_path.savings import NOT_NAMED, OUTSIDE, SEVERAL_DEVICES, PathSaving
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.spans import removed_inside, removed_time
from perfscope.dashboards.report.json_report import document
from perfscope.dashboards.report.text import render
from perfscope.model.finding import Finding, Removed
from perfscope.model.intervals import complement, union
from perfscope.model.trace import CallKind, Trace
from tests.build import TraceBuilder
from tests.critical_path.machine import Op, run, scaled, without_waits
from tests.critical_path.test_path import OPS

US = 1000

PLANTED = [
    *(Op("mm", 10, 300), Op("item", 5, 4, waits=True), Op("host", 200)) * 4,
    Op("end", 5, 4, waits=True),
]


def rows_named(trace: Trace, table: str, name: str) -> np.ndarray:
    codes = [code for code, text in enumerate(trace.strings) if text == name]
    return np.flatnonzero(np.isin(trace.rows[table]["name"], codes))


def finding(cost_us: int, *removes: Removed) -> Finding:
    return Finding(
        subject="x", title="x", severity="high", basis="measured", advice="x", cost_ns=cost_us * US, removes=removes
    )


def test_a_planted_wait_saves_what_its_twin_is_shorter_by() -> None:
    trace, before = run(PLANTED)
    twin = run(without_waits(PLANTED))[1]
    findings = analyze(trace, ["host_sync"])["host_sync"].findings
    (wait,) = (finding for finding in findings if finding.where.op == "item")
    assert wait.path_ns == pytest.approx((before - twin) * US, rel=0.1)
    assert wait.path_ns is not None
    assert wait.cost_ns is not None
    assert wait.cost_ns <= wait.path_ns
    assert wait.removes == ()


def test_work_beside_the_path_saves_nothing() -> None:
    program = [Op("mm", 10, 300), Op("side", 10, 50, stream=8), Op("end", 5, 4, waits=True)]
    trace, _ = run(program)
    side = bounded_by_path(trace, finding(50, Removed(table="kernels", rows=rows_named(trace, "kernels", "k_side"))))
    assert (side.path_ns, side.cost_ns, side.severity, side.basis, side.by_path) == (0, 0, "low", "modelled", True)
    assert side.own_ns == 50 * US
    assert "on the critical path" in side.detail


def test_the_smaller_of_both_bounds_is_the_cost() -> None:
    trace, _ = run([Op("mm", 10, 300), Op("end", 5, 4, waits=True)])
    mm = Removed(table="kernels", rows=rows_named(trace, "kernels", "k_mm"))
    rule = bounded_by_path(trace, finding(100, mm))
    assert (rule.cost_ns, rule.path_ns, rule.basis, rule.by_path) == (100 * US, 293 * US, "measured", False)
    half = bounded_by_path(trace, replace(finding(300, replace(mm, left=0.5)), cost_ns_per_step=100 * US))
    assert (half.cost_ns, half.cost_ns_per_step) == (150 * US, 50 * US)


def test_a_report_says_which_bound_it_is() -> None:
    trace, _ = run(PLANTED)
    judged = analyze(trace, ["host_sync"])
    outcome = judged.outcomes[0]
    shorter = replace(outcome.findings[0], path_ns=1, cost_ns=1, cost_ns_per_step=1)
    judged = replace(judged, outcomes=(replace(outcome, findings=(shorter,)),))
    assert "(by the critical path" in render(judged)
    (shown,) = document(judged)["outcomes"][0]["findings"]
    assert shown["path_ns"] == 1
    assert "removes" not in shown


@given(OPS, st.booleans())
def test_drawn_programs_without_an_op(ops: list[Op], waits: bool) -> None:
    """The saving is that of the machine without it, within the roundings; not less than that."""
    assume(any(op.name == "a" for op in ops))
    end = Op("end", 5, 4, waits=True)
    trace, before = run([*ops, end])
    twin = run(without_waits([*ops, end]) if waits else [*scaled(ops, "a", 0), end])[1]
    every = np.arange(len(trace.rows["calls"]))
    removes = (
        (Removed(table="waits", rows=every),) if waits else removed_inside(trace, rows_named(trace, "slices", "a"))
    )
    saved = saved_on_path(trace, removes).ns
    assume(saved is not None)
    assert saved is not None
    assert before * US - saved <= 1.1 * twin * US + 8 * len(ops) * US
    if not waits and all(op.stream == 7 for op in ops):  # a wait does not show for what else it would have waited then
        assert before * US - saved >= 0.9 * twin * US - 8 * len(ops) * US


def test_no_saving_where_dependencies_are_missing() -> None:
    def saved(*, devices: int) -> PathSaving:
        builder = TraceBuilder()
        builder.op("aten::mm", 0, 50)
        for device in range(devices):
            begin = 10 + 20 * device
            builder.launched("k", begin, begin + 10, begin + 110, device=device, correlation=device)
        builder.call("cudaDeviceSynchronize", 60, 150, kind=CallKind.SYNC)
        return saved_on_path(builder.build(), (Removed(table="kernels", rows=np.array([0])),))

    assert saved(devices=1).ns
    assert saved(devices=2) == PathSaving(reason=SEVERAL_DEVICES)


def test_no_saving_of_time_outside_the_recorded_steps() -> None:
    trace, _ = run(PLANTED)
    begin, end = trace.span_ns()
    within = removed_time(union([begin], [begin + 50 * US]))
    beyond = removed_time(union([end - 50 * US], [end + US]))
    assert saved_on_path(trace, (within,)).reason is None
    assert saved_on_path(trace, (within, beyond)) == PathSaving(reason=OUTSIDE)


def test_a_host_that_may_have_polled_the_device_counts_as_waiting() -> None:
    def saved(until: int) -> int | None:
        builder = TraceBuilder()
        builder.op("aten::mm", 0, 20)
        builder.launched("k", 10, 20, 520, correlation=1)
        builder.op("spin", 20, until)
        builder.step(1, 0, until)
        return saved_on_path(builder.build(), (Removed(table="kernels", rows=np.array([0])),)).ns

    assert saved(530) == 510 * US
    assert saved(900) == 0


@given(OPS, st.integers(0, 40))
def test_idle_time_of_drawn_programs(ops: list[Op], stall: int) -> None:
    """Without the host's part of all idle time of the device no program is longer than what the device works."""
    trace, whole = run([*ops, Op("end", 5, 4, waits=True)], stall=stall)
    kernels = trace.rows["kernels"]
    busy = union(kernels["start_ns"], kernels["end_ns"])
    idle = complement(busy, 0, int(kernels["end_ns"].max()))
    saved = saved_on_path(trace, (removed_time(idle),)).ns
    assert saved is not None
    assert saved == pytest.approx(idle.total(), abs=US * 10 * len(ops))
    assert saved <= whole * US


def host_rule_of(builder: TraceBuilder, rule: str) -> Finding:
    (found,) = analyze(builder.build(), [rule])[rule].findings
    return found


def slow_host(kernels: int, *, until: float) -> TraceBuilder:
    """Kernels of 20 us that are launched every 100 us, in a step of ``until`` us."""
    builder = TraceBuilder()
    for number in range(kernels):
        begin = 100 * number
        builder.op("aten::add", begin, begin + 90)
        builder.launched("k", begin + 80, begin + 90, begin + 110, correlation=number)
    builder.step(1, 0, until)
    return builder


def test_launching_on_the_path_is_worth_its_idle_time() -> None:
    builder = slow_host(20, until=2_015)
    builder.annotation("ProfilerStep#1", 0, 2_015)
    builder.call("cudaDeviceSynchronize", 1_995, 2_014, kind=CallKind.SYNC)
    found = host_rule_of(builder, "launch_bound")
    assert found.cost_ns is not None
    assert found.path_ns is not None
    assert found.path_ns >= found.cost_ns > 1_500 * US
    assert (found.basis, found.path_reason) == ("measured", None)


@pytest.mark.parametrize(
    ("what", "subject"),
    [("gc.collect", "garbage collection"), ("train.py(7): tokenize", "host work")],
)
def test_host_work_between_launches(what: str, subject: str) -> None:
    """Plain Python and garbage collection of 3 ms before each of five kernels."""
    builder = TraceBuilder()
    for number in range(5):
        begin = 4_000 * number
        builder.python(what, begin, begin + 3_000)
        builder.op("aten::mm", begin + 3_000, begin + 3_020)
        builder.launched("gemm", begin + 3_010, begin + 3_020, begin + 3_900, correlation=number)
        builder.call("cudaDeviceSynchronize", begin + 3_030, begin + 3_905, kind=CallKind.SYNC)
    builder.annotation("ProfilerStep#1", 0, 20_000)
    builder.step(1, 0, 20_000)
    found = host_rule_of(builder, "host_bound")
    assert found.subject == subject
    assert found.cost_ns is not None
    assert found.path_ns is not None
    assert found.path_ns >= 0.95 * found.cost_ns
    assert found.path_ns <= 5 * 3_100 * US
    assert found.path_reason is None


def test_a_finding_that_names_no_events_says_so() -> None:
    trace, _ = run(PLANTED)
    plain = bounded_by_path(trace, finding(50))
    assert (plain.cost_ns, plain.path_ns, plain.path_reason) == (50 * US, None, NOT_NAMED)
    judged = analyze(trace, ["host_sync"])
    outcome = replace(judged.outcomes[0], findings=(plain,))
    shown = replace(judged, outcomes=(outcome,))
    assert "not checked on the critical path" in render(shown, verbose=True)
    (row,) = document(shown)["outcomes"][0]["findings"]
    assert row["path_reason"] == NOT_NAMED


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name", ["HolisticTraceAnalysis__mtia_inference_rank_0.json.gz", "TraceLens__h100_bert-small.json.gz"]
)
def test_no_host_time_of_public_recordings_is_hidden(name: str, corpus: Path) -> None:
    """Time that the account attributes to the host is on the path, so both bounds agree."""
    for rule in ("host_bound", "launch_bound"):
        for found in analyze(load_all(corpus / "kineto" / name), [rule])[rule].findings:
            assert found.cost_ns is not None
            assert found.path_reason is not None or (found.path_ns or 0) >= 0.95 * found.cost_ns


PROGRAM = """
import sys, threading, torch
torch.set_num_threads(1)
never = threading.Event()
x = torch.randn(64, 64)

def step(planted):
    y = torch.tanh(x @ x)
    with torch.profiler.record_function("work"):
        never.wait(0.08)  # not computed: other programs on this machine make that longer
    if planted:
        with torch.profiler.record_function("read"):
            never.wait(0.05)
            y[0, 0].item()
    return torch.tanh(y @ x)

for planted in (True, False) * 2:  # the second pair is warm
    with torch.profiler.profile() as profiler:
        for number in range(6):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                step(planted)
    profiler.export_chrome_trace(sys.argv[1 + planted])
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_real_program_without_its_planted_read(tmp_path: Path) -> None:
    """A read that waits for 50 ms: what is left must be the twin's step within 10 %, in one of three launches."""
    twin, planted, errors = tmp_path / "twin.json", tmp_path / "planted.json", []
    for _ in range(3):
        subprocess.run([sys.executable, "-c", PROGRAM, str(twin), str(planted)], check=True, timeout=120)
        events = json.loads(twin.read_text())["traceEvents"]
        steps = [event["dur"] for event in events if str(event.get("name")).startswith("ProfilerStep#")]
        answer = what_if(load_all(planted)[0], parse_hypothesis("read x0"))
        assert answer is not None
        assert answer.after_ns < 0.8 * answer.before_ns
        errors.append(abs(answer.after_ns / answer.steps / US / (sum(steps) / len(steps)) - 1))
        if errors[-1] < 0.1:
            return
    raise AssertionError(f"the twin's step is off by {errors}")
