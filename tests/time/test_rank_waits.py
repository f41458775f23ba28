"""Waiting for other ranks in host collectives is a separate cause, different from a lock."""

from __future__ import annotations

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time import step_accounts
from perfscope.analyzers.time.account import check_step_accounts
from perfscope.analyzers.time.host_account import host_account
from perfscope.analyzers.time.rank_waits import message_kind, reduced_too_often, reductions_per_update
from perfscope.model.trace import SliceKind, Trace
from tests.build import EVERYTHING, TraceBuilder

ON_HOST = EVERYTHING - {"device_work", "launch_links", "op_links"}


def step(
    *collectives: tuple[float, float], name: str = "gloo:all_reduce", call: tuple[float, float] | None = None
) -> TraceBuilder:
    """A step of 10 ms on the host: ops from 0 to 4 and 8 to 9, and collectives on the backend's thread."""
    b = TraceBuilder(recorded=ON_HOST)
    b.step(0, 0, 10_000)
    b.annotation("ProfilerStep#0", 0, 10_000)
    b.op("aten::mm", 0, 4_000)
    b.op("aten::mm", 8_000, 9_000)
    if call is not None:
        b.op("c10d::barrier", *call)
    for start, end in collectives:
        b.slice(name, start, end, kind=SliceKind.ANNOTATION, tid=2)
        row = len(b.tables["slices"]) - 1
        b.row("collectives", start_ns=int(start * 1000), end_ns=int(end * 1000), name=b.code("all_reduce"), slice=row)
    return b


def causes(trace: Trace) -> dict[str, int]:
    (account,) = trace.fact(step_accounts)
    check_step_accounts(trace)
    return {cause: value for cause, value in account.total_ns.items() if value}


@pytest.mark.parametrize("name", ["gloo:all_reduce", "gloo:recv", "mpi:barrier"])
def test_time_in_which_a_collective_is_in_flight_and_nothing_runs(name: str) -> None:
    trace = step((3_000, 7_000), name=name).build()
    found = causes(trace)
    assert found["other_ranks"] == 3_000_000
    assert found["compute"] == 5_000_000
    account = trace.fact(host_account)
    assert account is not None
    assert account.total_ns["other_ranks"] == 3_000_000


def test_a_collective_beside_ops_or_short_gaps_is_no_wait() -> None:
    assert "other_ranks" not in causes(step((500, 3_500)).build())
    b = TraceBuilder(recorded=ON_HOST)
    b.step(0, 0, 1_000)
    b.annotation("ProfilerStep#0", 0, 1_000)
    for number in range(10):
        b.op("aten::mm", 100 * number, 100 * number + 50)
    b.slice("gloo:all_reduce", 0, 1_000, kind=SliceKind.ANNOTATION, tid=2)
    b.row("collectives", start_ns=0, end_ns=1_000_000, name=b.code("all_reduce"), slice=len(b.tables["slices"]) - 1)
    assert "other_ranks" not in causes(b.build())


def test_a_call_of_the_backend_that_blocks_is_a_wait() -> None:
    assert causes(step((4_000, 8_000), call=(4_100, 7_900)).build())["other_ranks"] == 4_000_000


def test_a_program_that_sleeps_beside_a_collective_does_not_wait_for_it() -> None:
    b = step((4_000, 8_000))
    for at in range(4_500, 8_000, 500):
        b.sample("train.py(3): main > train.py(9): pause > time.sleep", at, lasts=500, cpu=0, step=0)
    found = causes(b.build())
    assert found.get("other_ranks", 0) == 0
    assert found["sleeping"] >= 3_000_000


def test_samples_that_wait_in_the_framework_are_waits_for_other_ranks() -> None:
    b = step((4_000, 8_000))
    for at in range(4_500, 8_000, 500):
        b.sample("train.py(3): main > train.py(9): step > _engine_run_backward", at, lasts=500, cpu=0, step=0)
    assert causes(b.build())["other_ranks"] == 4_000_000


def test_a_backward_line_that_also_computes_waits_between_its_ops() -> None:
    b = step((4_000, 8_000))
    for at in range(0, 8_000, 500):
        b.sample("train.py(3): main > torch/_tensor.py(9): backward", at, lasts=500, cpu=400, step=0)
    assert causes(b.build())["other_ranks"] == 4_000_000


def test_a_program_that_computes_in_python_beside_a_collective_does_not_wait() -> None:
    b = step((4_000, 8_000))
    for at in range(4_000, 8_000, 500):
        b.sample("train.py(3): main > train.py(9): tokenize", at, lasts=500, cpu=500, step=0)
    assert causes(b.build()).get("other_ranks", 0) == 0


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("recv", "recv", "pipeline"),
        ("send", "recv", "exchange"),
        ("all_gather", "all_gather", None),
    ],
)
def test_messages_between_two_ranks(first: str, second: str, kind: str | None) -> None:
    b = step((3_000, 8_000), (3_100, 7_900))
    for row, name in zip(b.tables["collectives"], (first, second), strict=True):
        row["name"] = b.code(name)
    trace = b.build()
    assert message_kind(trace) == kind
    (finding,) = judge(load_rule("unexplained_idle"), trace).findings
    assert ("microbatches" in finding.advice) is (kind == "pipeline")


@pytest.mark.parametrize("trains", [True, False])
def test_a_rank_that_sends_before_it_receives_takes_turns_or_is_a_stage_in_training(trains: bool) -> None:
    b = step((3_000, 5_000), (5_000, 8_000))
    for row, name in zip(b.tables["collectives"], ("send", "recv"), strict=True):
        row["name"] = b.code(name)
    if trains:
        b.slice("Optimizer.step#SGD.step", 8_100, 8_200, kind=SliceKind.ANNOTATION, tid=3)
    trace = b.build()
    assert message_kind(trace) == "turns"
    (finding,) = judge(load_rule("unexplained_idle"), trace).findings
    assert ("stages of a pipeline" in finding.advice) is trains


def test_the_finding_names_it() -> None:
    outcome = judge(load_rule("unexplained_idle"), step((3_000, 8_000)).build())
    (finding,) = outcome.findings
    assert "waiting for other ranks" in finding.title
    assert "lock" not in finding.title + finding.detail


def accumulated(*reduced: bool, updates: int = 4) -> Trace:
    """Updates of several forward passes each, with an all-reduce after those that are not under ``no_sync()``."""
    b = TraceBuilder(recorded=ON_HOST)
    now = 0.0
    spans = []
    for _ in range(updates):
        for follows in reduced:
            b.annotation("DistributedDataParallel.forward", now, now + 10)
            if follows:
                spans.append((now + 20, now + 30))
            now += 40
        b.annotation("Optimizer.step#SGD.step", now, now + 5)
        now += 10
    for start, end in spans:
        b.slice("gloo:all_reduce", start, end, kind=SliceKind.ANNOTATION, tid=2)
        row = len(b.tables["slices"]) - 1
        b.row("collectives", start_ns=int(start * 1000), end_ns=int(end * 1000), name=b.code("all_reduce"), slice=row)
    return b.build()


@pytest.mark.parametrize(
    ("reduced", "count"),
    [((True, True, True, True), 4), ((False, False, False, True), 1), ((True,), 1), ((False, True), 1)],
)
def test_reductions_per_optimizer_step(reduced: tuple[bool, ...], count: int) -> None:
    trace = accumulated(*reduced)
    assert reductions_per_update(trace) == count
    assert ("no_sync()" in reduced_too_often(trace)) == (count > 1)


def test_too_few_updates_do_not_tell() -> None:
    assert reductions_per_update(accumulated(True, True, updates=2)) == 0
