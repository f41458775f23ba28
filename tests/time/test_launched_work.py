"""Steps are timed by the work that was launched in them where the host runs ahead of the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.kineto import reader
from perfscope.analyzers.time import account_windows, step_accounts, steps_work, whole_ns
from perfscope.analyzers.time.account import check_step_accounts
from perfscope.analyzers.time.host_account import host_account
from perfscope.model.trace import MISSING, Trace
from tests.build import TraceBuilder


def run_ahead(*, before: bool = False, steps: int = 3) -> Trace:
    """Steps of 100 us on the host whose two kernels take 250 us each; with work of an earlier step, launched before."""
    b = TraceBuilder()
    now = 10.0
    if before:
        b.kernel("earlier", 0, 400)
        now = 400.0
    number = 0
    for step in range(steps):
        b.step(step, 100 * step, 100 * step + 100)
        for _ in range(2):
            number += 1
            at = 100 * step + 5 + 10 * number % 20
            b.op("aten::mm", at, at + 8)
            b.launched("gemm", at, now, now + 250, correlation=number)
            now += 250
    return b.build()


def windows(trace: Trace) -> list[tuple[float, float]]:
    chosen = trace.fact(account_windows)
    return [(start / 1000, end / 1000) for start, end in zip(chosen.starts, chosen.ends, strict=True)]


def test_a_step_lasts_until_its_work_has_ended() -> None:
    trace = run_ahead()
    assert windows(trace) == [(0, 510), (510, 1010), (1010, 1510)]
    assert whole_ns(trace) == 1_510_000
    (account,) = trace.fact(step_accounts)
    check_step_accounts(trace)
    assert account.causes_ns["compute"] == (500_000, 500_000, 500_000)
    shown = analyze(trace).steps
    assert [(step.duration_ns, step.host_ns) for step in shown] == [
        (510_000, 100_000),
        (500_000, 100_000),
        (500_000, 100_000),
    ]


def test_the_hosts_own_time_is_that_of_its_marks() -> None:
    account = run_ahead().fact(host_account)
    assert account is not None
    assert account.whole_ns == 300_000


def test_work_of_an_earlier_step_is_not_counted() -> None:
    trace = run_ahead(before=True)
    assert windows(trace) == [(400, 900), (900, 1400), (1400, 1900)]
    (account,) = trace.fact(step_accounts)
    assert account.whole_ns == account.total_ns["compute"] == 1_500_000


def test_a_host_that_waits_for_its_work_keeps_its_marks() -> None:
    b = TraceBuilder()
    for step in range(3):
        b.step(step, 100 * step, 100 * step + 100)
        b.launched("gemm", 100 * step + 5, 100 * step + 10, 100 * step + 90, correlation=step + 1)
    trace = b.build()
    assert windows(trace) == [(0, 100), (100, 200), (200, 300)]
    assert [step.host_ns for step in analyze(trace).steps] == [None, None, None]


@pytest.mark.parametrize(("late", "end"), [(14.9, 300), (15.1, 315.1)])
def test_what_is_left_after_the_last_mark_counts_from_a_twentieth_of_the_steps(late: float, end: float) -> None:
    b = TraceBuilder()
    for step in range(3):
        b.step(step, 100 * step, 100 * step + 100)
        b.launched("gemm", 100 * step + 5, 100 * step + 10, 100 * step + 90, correlation=step + 1)
    b.launched("last", 295, 298, 300 + late, correlation=9)
    assert windows(b.build())[-1] == (200, end)


def test_work_that_is_launched_after_the_steps_is_not_theirs() -> None:
    b = TraceBuilder()
    b.step(0, 0, 100)
    b.launched("own", 5, 10, 90, correlation=1)
    b.launched("evaluation", 150, 160, 900, correlation=2)
    assert windows(b.build()) == [(0, 100)]


def test_a_pause_between_steps_is_not_in_them() -> None:
    b = TraceBuilder()
    b.step(0, 0, 100)
    b.launched("own", 5, 10, 300, correlation=1)
    b.step(1, 1000, 1100)
    b.launched("own", 1005, 1010, 1300, correlation=2)
    assert windows(b.build()) == [(0, 300), (1000, 1300)]


def test_a_kernel_without_a_launch_is_of_the_step_of_the_work_before_it() -> None:
    b = TraceBuilder()
    b.step(0, 0, 100)
    b.launched("own", 5, 10, 300, correlation=1)
    b.kernel("lost", 300, 500)
    assert windows(b.build()) == [(0, 500)]


def test_without_launches_the_marks_of_the_host_stay() -> None:
    b = TraceBuilder()
    b.step(0, 0, 100)
    b.kernel("own", 10, 300)
    trace = b.build()
    assert trace.fact(steps_work) is None
    assert windows(trace) == [(0, 100)]


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    device = {"pid": 0, "tid": 7} if "gpu" in cat or cat == "kernel" else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, **device}


def kineto(folder: Path, *events: dict[str, Any]) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return reader.read(path)


def launches() -> list[dict[str, Any]]:
    return [
        made
        for step in range(3)
        for made in (
            event("cuda_runtime", "cudaLaunchKernel", 100 * step + 10, 5, correlation=step + 1),
            event("kernel", "gemm", 20 + 400 * step, 400, correlation=step + 1, device=0, stream=7),
        )
    ]


def test_marks_on_the_devices_are_told_beside_those_of_the_host(tmp_path: Path) -> None:
    marks = [event("user_annotation", f"ProfilerStep#{step}", 100 * step, 100) for step in range(3)]
    device = [event("gpu_user_annotation", f"ProfilerStep#{step}", 20 + 400 * step, 400) for step in range(3)]
    steps = analyze(kineto(tmp_path, *marks, *device, *launches())).steps
    assert [(step.duration_ns, step.host_ns, step.mark_ns) for step in steps] == [
        (420_000, 100_000, 400_000),
        (400_000, 100_000, 400_000),
        (400_000, 100_000, 400_000),
    ]
    short = [event("gpu_user_annotation", f"ProfilerStep#{step}", 20 + 400 * step, 16) for step in range(3)]
    assert {step.mark_ns for step in analyze(kineto(tmp_path, *marks, *short, *launches())).steps} == {None}


def test_where_the_host_has_no_marks_those_on_the_devices_are_the_steps(tmp_path: Path) -> None:
    device = [event("gpu_user_annotation", f"ProfilerStep#{step}", 20 + 400 * step, 390) for step in (0, 1)]
    second = event("gpu_user_annotation", "ProfilerStep#1", 450, 380)
    trace = kineto(tmp_path, *device, second, *launches())
    rows = trace.rows["steps"]
    assert rows["number"].tolist() == [0, 1]
    assert (rows["start_ns"] - rows["start_ns"][0]).tolist() == [0, 400_000]
    assert (rows["end_ns"] - rows["start_ns"]).tolist() == [400_000, 410_000]
    assert (rows["device_start_ns"] != MISSING).all()
