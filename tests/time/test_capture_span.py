"""A capture without steps lasts from the program's first work to its last, and not as long as its process."""

from __future__ import annotations

from perfscope.analyzers.time import account_windows, step_accounts, whole_ns
from perfscope.model.trace import CallKind
from tests.build import TraceBuilder


def test_the_start_and_the_end_of_the_process_are_left_out() -> None:
    b = TraceBuilder()
    b.call("cuInit", 100, 400_000, kind=CallKind.OTHER)
    b.launched("gemm", 431_000, 431_010, 431_500, correlation=1)
    b.call("cudaDeviceSynchronize", 431_020, 431_510, kind=CallKind.SYNC)
    b.call("cuCtxDestroy", 500_000, 700_000, kind=CallKind.OTHER)
    trace = b.build()
    windows = trace.fact(account_windows)
    assert (windows.starts.tolist(), windows.ends.tolist()) == ([431_010_000], [431_510_000])
    assert whole_ns(trace) == 500_000
    (account,) = trace.fact(step_accounts)
    assert account.total_ns["compute"] == 490_000


def test_ops_and_ranges_of_the_program_are_in_it() -> None:
    b = TraceBuilder()
    b.annotation("enumerate(DataLoader)#_Iter.__next__", 1_000, 50_000)
    b.launched("gemm", 60_000, 60_010, 70_000, correlation=1)
    assert b.build().fact(account_windows).starts.tolist() == [1_000_000]


def test_without_a_device_it_is_the_whole_capture() -> None:
    b = TraceBuilder()
    b.call("cuInit", 0, 100, kind=CallKind.OTHER)
    b.op("aten::mm", 500, 900)
    assert b.build().fact(account_windows).starts.tolist() == [0]
