from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.time import device_doubts, whole_ns
from perfscope.analyzers.time.account import check_step_accounts, step_accounts, warm_accounts
from perfscope.analyzers.time.host_activity import NOT_RECORDED, host_work, innermost_spans, main_thread
from perfscope.analyzers.time.steps import account_windows
from perfscope.model.documents.causes import CAUSES
from perfscope.model.intervals import Intervals, complement, difference, intersection, union
from perfscope.model.trace import MISSING, CallKind, CopyKind, HostMemory, Trace
from tests.build import TraceBuilder
from tests.time.naive_account import naive_account

UNIT = 100.0
"""us: times of the drawn traces are multiples of it."""


def _totals(trace: Trace) -> dict[str, int]:
    (account,) = trace.fact(step_accounts)
    check_step_accounts(trace)
    return {cause: value for cause, value in account.total_ns.items() if value}


def test_the_step_counts_from_its_begin_to_its_end() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.launched("gemm", 3_000, 3_005, 4_000, correlation=1)
    b.launched("gemm", 3_500, 4_000, 4_500, correlation=2)
    assert _totals(b.build()) == {"compute": 1_495_000, "launch": 5_000, "other_host": 8_500_000}


def test_a_wait_explains_no_more_than_it_lasted() -> None:
    b = TraceBuilder()
    b.step(1, 0, 30_000)
    b.launched("a", 0, 5, 4_000, correlation=1)
    b.call("cudaStreamSynchronize", 100, 4_001, kind=CallKind.SYNC)
    b.launched("b", 24_000, 24_005, 30_000, correlation=2)
    totals = _totals(b.build())
    assert totals["sync"] == 3_900_000
    assert totals["other_host"] == 24_000_000 - 4_000_000 - 3_900_000
    assert (totals["launch"], totals["dependency"]) == (5_000, 5_000)


def test_work_that_begins_long_after_its_launch_waits_for_something_else() -> None:
    b = TraceBuilder()
    b.step(1, 0, 30_000)
    b.launched("a", 0, 0, 1_000, correlation=1)
    b.launched("b", 2_000, 22_000, 30_000, correlation=2, cost=10)
    assert _totals(b.build()) == {
        "compute": 9_000_000, "launch": 10_000, "other_host": 1_000_000, "dependency": 19_990_000,
    }  # fmt: skip


def test_a_launch_that_takes_long_loads_its_code() -> None:
    b = TraceBuilder()
    b.step(1, 0, 30_000)
    b.launched("a", 100, 20_000, 30_000, correlation=1, cost=19_890)
    totals = {"compute": 10_000_000, "launch": 10_000, "compilation": 19_890_000, "other_host": 100_000}
    assert _totals(b.build()) == totals


def test_device_waits_are_dependencies_and_lost_launches_unexplained() -> None:
    b = TraceBuilder()
    b.step(1, 0, 1_000)
    b.launched("a", 0, 0, 100, correlation=1)
    b.launched("b", 50, 300, 400, correlation=2)
    b.kernel("c", 600, 1_000)
    assert _totals(b.build()) == {"compute": 600_000, "dependency": 200_000, "unexplained": 200_000}


def test_without_steps_it_is_of_the_whole_capture() -> None:
    b = TraceBuilder()
    b.op("aten::mm", 0, 50)
    b.launched("a", 10, 20, 100, correlation=1)
    trace = b.build()
    (account,) = trace.fact(step_accounts)
    assert (account.numbers, account.whole_ns) == ((), 100_000)


def test_without_an_accelerator_it_is_of_the_main_thread() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.op("aten::mm", 1_000, 5_000)
    b.op("aten::add", 5_100, 6_000)
    b.annotation("enumerate(DataLoader)#Loader.__next__", 6_000, 7_000)
    b.python("<built-in function sleep>", 7_000, 8_500)
    (account,) = b.build().fact(step_accounts)
    totals = {cause: value for cause, value in account.total_ns.items() if value}
    assert account.device == MISSING
    assert totals == {
        "compute": 4_900_000, "input": 1_000_000, "sleeping": 1_500_000, "launch": 100_000, "other_host": 2_500_000,
    }  # fmt: skip


def test_time_of_an_xla_program_on_the_processor_is_compute_whatever_the_main_thread_does() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.op("PjitFunction(step)", 0, 1_000)
    b.python("$array.py:1 block_until_ready", 1_000, 7_000)
    b.python("<built-in function sleep>", 7_000, 10_000)
    for start, end in ((2_000, 4_000), (3_000, 6_000), (7_500, 8_000)):
        b.row("hlo_ops", start_ns=start * 1000, end_ns=end * 1000, name=b.code("fusion"), encloses=False)
    (account,) = b.build().fact(step_accounts)
    totals = {cause: value for cause, value in account.total_ns.items() if value}
    assert totals == {"compute": 5_500_000, "sync": 2_000_000, "sleeping": 2_500_000}


def test_nothing_recorded_no_account() -> None:
    assert TraceBuilder().build().fact(step_accounts) == ()


HOST = st.sampled_from(["launch", "lost", "sync", "malloc", "loader", "dynamo", "sleep", "op", "nothing", "copy"])
ITEM = st.tuples(HOST, st.integers(0, 6), st.integers(1, 16), st.integers(0, 8), st.integers(0, 14), st.booleans())


@settings(max_examples=30, deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=10), st.lists(ITEM, max_size=5), st.integers(1, 3))
def test_it_equals_a_count_of_every_cell(
    first: list[tuple[str, int, int, int, int, bool]], second: list[tuple[str, int, int, int, int, bool]], steps: int
) -> None:
    b = TraceBuilder()
    b.launched("warm", 0, 0, UNIT, correlation=1, cost=UNIT)
    end = max(_thread(b, 1, first, 100), _thread(b, 2, second, 200), 4 * UNIT)
    length = (end // UNIT // steps + 1) * UNIT
    for number in range(steps):
        b.step(number, number * length, (number + 1) * length)
    trace = b.build()
    trace.seed(device_doubts, ())  # what is drawn may overlap in a stream
    check_step_accounts(trace)
    chosen = trace.fact(account_windows)
    windows = list(zip(chosen.starts.tolist(), chosen.ends.tolist(), strict=True))
    (account,) = trace.fact(step_accounts)
    for number, naive in enumerate(naive_account(trace, account.device, windows)):
        assert {c: account.causes_ns[c][number] for c in CAUSES if account.causes_ns[c][number]} == dict(naive)


def _thread(b: TraceBuilder, tid: int, items: list[tuple[str, int, int, int, int, bool]], number: int) -> float:
    """Host work of a thread in a row, and what it launches; returns when all of it is over."""
    now, last = UNIT, UNIT
    for index, (kind, pause, length, delay, run, flag) in enumerate(items):
        begin = now + pause * UNIT
        end = begin + length * UNIT
        if kind in ("launch", "lost", "copy"):
            b.op("aten::mm", begin, end, tid=tid)
            correlation = number + index if kind != "lost" else -1
            b.call("cudaLaunchKernel", begin, begin + UNIT, tid=tid, correlation=correlation)
            start = begin + delay * UNIT
            if kind == "copy":
                b.copy("Memcpy", start, start + run * UNIT, correlation=correlation, kind=CopyKind.DEVICE_TO_DEVICE)
            else:
                b.kernel("k", start, start + run * UNIT, correlation=correlation, communication=flag, stream=7 + tid)
            last = max(last, start + run * UNIT)
        elif kind == "sync":
            b.call("cudaStreamSynchronize", begin, end, kind=CallKind.SYNC, tid=tid)
        elif kind == "malloc":
            b.call("cudaMalloc", begin, end, kind=CallKind.MEMORY, tid=tid)
        elif kind == "loader":
            b.annotation("enumerate(DataLoader)#Loader.__next__", begin, end, tid=tid)
        elif kind == "dynamo":
            b.annotation("compile_inner (dynamo_timed)", begin, end, tid=tid)
        elif kind == "sleep":
            b.python("<built-in function sleep>", begin, end, tid=tid)
        elif kind == "op":
            b.op("aten::sort", begin, end, tid=tid)
        now = end
    return max(now, last)


def test_the_innermost_span_of_every_moment() -> None:
    b = TraceBuilder()
    b.python("outer", 0, 100)
    b.python("inner", 10, 30)
    b.python("empty", 20, 20)
    b.python("twin", 30, 40)
    b.python("last", 90, 100)
    trace = b.build()
    pieces = innermost_spans(trace, 0)
    names = [trace.text(int(trace.rows["slices"]["name"][row])) for row in pieces.slices.tolist()]
    spans = list(zip((pieces.starts // 1000).tolist(), (pieces.ends // 1000).tolist(), names, strict=True))
    assert spans == [(0, 10, "outer"), (10, 30, "inner"), (30, 40, "twin"), (40, 90, "outer"),
                     (90, 100, "last")]  # fmt: skip


def test_host_work_sums_to_the_time_it_is_asked_for() -> None:
    b = TraceBuilder()
    b.python("train.py(3): tokenize", 0, 40)
    b.python("train.py(9): log", 60, 70)
    trace = b.build()
    work = host_work(trace, union([10_000], [100_000]))
    assert [(item.name, item.total_ns) for item in work] == [
        (NOT_RECORDED, 50_000), ("train.py(3): tokenize", 30_000), ("train.py(9): log", 10_000),
    ]  # fmt: skip


def test_the_main_thread_is_that_of_the_steps() -> None:
    b = TraceBuilder()
    b.op("backward", 0, 90, tid=1)
    b.annotation("ProfilerStep#1", 0, 50, tid=2)
    b.step(1, 0, 50)
    trace = b.build()
    threads = trace.rows["threads"]["thread"]
    assert trace.text(int(threads[trace.fact(main_thread)])) == "2"


def test_steps_of_a_trace_in_order() -> None:
    b = TraceBuilder()
    b.step(2, 100, 200)
    b.step(1, 0, 100)
    b.launched("a", 0, 10, 100, correlation=1)
    windows = b.build().fact(account_windows)
    assert windows.numbers == (1, 2)
    assert windows.whole_ns == 200_000


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=9)


@given(INTERVALS, INTERVALS)
def test_intersection_and_difference_equal_sets_of_cells(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    a, b = (union([s for s, _ in part], [s + n for s, n in part]) for part in (first, second))
    assert _cells(intersection(a, b)) == _cells(a) & _cells(b)
    assert _cells(difference(a, b)) == _cells(a) - _cells(b)
    assert _cells(complement(a, 0, 80)) == set(range(80)) - _cells(a)
    for result in (intersection(a, b), difference(a, b)):
        assert (result.ends > result.starts).all()
        assert (result.starts[1:] > result.ends[:-1]).all()


def _cells(spans: Intervals) -> set[int]:
    return {cell for s, e in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True) for cell in range(s, e)}


def test_pageable_copies_are_no_copies_of_the_host() -> None:
    b = TraceBuilder()
    b.step(1, 0, 1_000)
    b.launched("k", 0, 5, 400, correlation=1)
    b.copy("Memcpy HtoD (Pinned -> Device)", 400, 1_000, host_memory=HostMemory.PINNED, size=10)
    totals = _totals(b.build())
    assert totals["exposed_copy"] == 600_000
    assert np.sum(list(totals.values())) == 1_000_000


def _three_steps(last_us: float, free_us: list[float]) -> Trace:
    b = TraceBuilder()
    for number, (start, end) in enumerate(((0, 10_000), (10_000, 20_000), (20_000, 20_000 + last_us)), 5):
        b.step(number, start, end)
        b.op("aten::mm", start, end)
    b.step_times_us = tuple(free_us)
    return b.build()


def test_the_account_is_of_the_usual_step_and_says_which_are_left_out() -> None:
    usual, rare = [10_000.0] * 39, [30_000.0]
    (account,) = _three_steps(21_000, usual + rare).fact(warm_accounts)
    assert (account.numbers, account.outliers, account.whole_ns) == ((5, 6), (7,), 20_000_000)
    (whole,) = _three_steps(21_000, usual + rare).fact(step_accounts)
    assert (whole.numbers, whole.outliers) == ((5, 6, 7), (7,)), "the account of all steps has it still"
    assert whole_ns(_three_steps(21_000, usual + rare)) == 30_000_000, "a cost is compared with three usual steps"


def test_long_steps_that_the_run_often_has_are_no_outliers() -> None:
    usual = [10_000.0] * 30
    for trace in (
        _three_steps(20_000, usual),
        _three_steps(30_000, usual + [30_000.0] * 10),
        _three_steps(30_000, usual[:4]),
    ):
        (account,) = trace.fact(warm_accounts)
        assert (account.numbers, account.outliers) == ((5, 6, 7), ())
