from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.time.device_time import DeviceTime, device_times
from perfscope.analyzers.time.exposure import exposed_communication, exposed_copies
from perfscope.analyzers.time.gaps import GapCause, gaps
from perfscope.model.trace import CallKind, CopyKind, HostMemory
from tests.build import TraceBuilder
from tests.time.naive_gaps import naive_totals


def test_parts_of_a_small_timeline() -> None:
    build = TraceBuilder()
    build.kernel("gemm", 0, 10)
    build.kernel("ncclAllReduce", 5, 20, stream=9, communication=True)
    build.copy("Memcpy HtoD (Pinned -> Device)", 18, 25)
    build.kernel("gemm", 40, 50)
    (device,) = build.build().fact(device_times)
    assert (device.span_ns, device.busy_ns, device.idle_ns) == (50_000, 35_000, 15_000)
    assert (device.compute_ns, device.communication_ns) == (20_000, 15_000)
    assert (device.exposed_communication_ns, device.exposed_copy_ns) == (10_000, 5_000)
    assert (device.kernel_time_ns, device.kernels) == (35_000, 3)


def test_devices_are_accounted_apart() -> None:
    build = TraceBuilder()
    build.kernel("a", 0, 10, device=0)
    build.kernel("b", 100, 130, device=1)
    first, second = build.build().fact(device_times)
    assert (first.ordinal, first.busy_ns, second.ordinal, second.busy_ns) == (0, 10_000, 1, 30_000)
    assert first.idle_ns == second.idle_ns == 0


def test_no_device_no_account() -> None:
    build = TraceBuilder()
    build.op("aten::add", 0, 5)
    assert build.build().fact(device_times) == ()


work = st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from(["compute", "communication", "copy"]))


@given(st.lists(work, min_size=1, max_size=20))
def test_parts_always_sum_to_the_span(drawn: list[tuple[int, int, str]]) -> None:
    build = TraceBuilder()
    for start, length, kind in drawn:
        if kind == "copy":
            build.copy("Memset (Device)", start, start + length)
        else:
            build.kernel(kind, start, start + length, communication=kind == "communication")
    (device,) = build.build().fact(device_times)
    device.check()
    assert device.kernel_time_ns == 1000 * sum(length for _, length, kind in drawn if kind != "copy")


def test_check_refuses_parts_that_do_not_sum() -> None:
    parts: dict[str, Any] = dict.fromkeys(
        ("compute_ns", "communication_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns", "kernels"), 0
    )
    broken = DeviceTime(
        rank=0, device=0, ordinal=0, name="", span_ns=10, busy_ns=9, kernel_time_ns=9, start_ns=0, end_ns=10, **parts
    )
    with pytest.raises(ValueError, match="do not sum"):
        broken.check()


def test_a_moment_of_two_collectives_belongs_to_the_one_that_began_first():
    b = TraceBuilder()
    b.kernel("compute", 0, 10)
    b.kernel("nccl a", 5, 30, stream=20, communication=True)
    b.kernel("nccl b", 20, 40, stream=21, communication=True)
    assert b.build().fact(exposed_communication).tolist() == [0, 20_000, 10_000]


def test_a_copy_under_a_kernel_or_a_collective_is_not_exposed():
    b = TraceBuilder()
    b.kernel("compute", 0, 10)
    b.kernel("nccl", 10, 20, stream=20, communication=True)
    b.copy("Memcpy HtoD", 5, 25, stream=30)
    assert b.build().fact(exposed_copies).tolist() == [5_000]


_KERNELS_BY_KIND = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 1), st.sampled_from(["compute", "nccl", "copy"])),
    max_size=15,
)


@settings(deadline=None)
@given(_KERNELS_BY_KIND)
def test_the_rows_sum_to_the_devices_account(work):
    b = TraceBuilder()
    for start, length, device, what in work:
        if what == "copy":
            b.copy("Memcpy", start, start + length, device=device)
        else:
            b.kernel(what, start, start + length, device=device, communication=what == "nccl")
    trace = b.build()
    communication, copies = trace.fact(exposed_communication), trace.fact(exposed_copies)
    for device in trace.fact(device_times):
        on_device = trace.rows["kernels"]["device"] == device.device
        assert communication[on_device].sum() == device.exposed_communication_ns
        assert copies[trace.rows["copies"]["device"] == device.device].sum() == device.exposed_copy_ns
    assert (communication >= 0).all()
    assert (copies >= 0).all()


def _two_kernels(launch: float) -> TraceBuilder:
    """Kernel 10-20 us, idle, kernel 60-70 us; the second launched at ``launch``."""
    b = TraceBuilder()
    b.launched("first", 0, 10, 20, correlation=1)
    b.launched("second", launch, 60, 70, correlation=2)
    return b


def _totals(b: TraceBuilder) -> dict[str, int]:
    trace = b.build()
    found = trace.fact(gaps).totals()
    assert sum(found.values()) == sum(device.idle_ns for device in trace.fact(device_times))
    return {reason: value for reason, value in found.items() if value}


def test_work_that_was_queued_waits_for_a_dependency():
    assert _totals(_two_kernels(launch=20)) == {"dependency": 40_000}


def test_a_late_launch_with_nothing_blocking_is_launch():
    assert _totals(_two_kernels(launch=20.001)) == {"launch": 40_000}


def test_no_launch_link_is_unknown():
    b = TraceBuilder()
    b.launched("first", 0, 10, 20, correlation=1)
    b.kernel("second", 60, 70, correlation=2)
    assert _totals(b) == {"unknown": 40_000}


def test_no_launch_link_but_work_behind_it_was_queued():
    b = TraceBuilder()
    b.launched("first", 0, 10, 20, correlation=1)
    b.kernel("second", 60, 70, correlation=2)
    b.launched("behind", 15, 70, 80, correlation=3)
    assert _totals(b) == {"dependency": 40_000}


def test_work_behind_it_on_another_stream_says_nothing():
    b = TraceBuilder()
    b.launched("first", 0, 10, 20, correlation=1)
    b.kernel("second", 60, 70, correlation=2, stream=7)
    b.launched("elsewhere", 15, 70, 80, correlation=3, stream=8)
    assert _totals(b) == {"unknown": 40_000}


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaFree",
        "cudaHostFree", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH_v2", "hipMemcpyWithStream",
        "hipDeviceSynchronize", "hipStreamSynchronize", "cudaStreamSynchronize_v3020",
    ],
)  # fmt: skip
def test_a_wait_that_was_on_its_way_is_charged(name):
    b = _two_kernels(launch=50)
    b.op("aten::_local_scalar_dense", 1, 30)
    b.call(name, 2, 25, kind=CallKind.SYNC)
    trace = b.build()
    found = trace.fact(gaps)
    assert found.totals()["host_sync"] == 40_000
    assert trace.text(int(trace.rows["calls"]["name"][found.sync[0]])) == name


@pytest.mark.parametrize("name", ["cudaStreamWaitEvent", "cudaEventQuery", "cudaMemcpyAsync", "cudaMalloc"])
def test_calls_that_do_not_wait_are_not_charged(name):
    b = _two_kernels(launch=50)
    b.op("aten::op", 1, 30)
    b.call(name, 2, 25, kind=CallKind.OTHER)
    assert _totals(b) == {"launch": 40_000}


def test_a_wait_that_began_on_an_idle_device_did_not_cause_it():
    b = _two_kernels(launch=50)
    b.op("aten::item", 21, 30)
    b.call("cudaStreamSynchronize", 22, 25, kind=CallKind.SYNC)
    assert _totals(b) == {"launch": 40_000}


def test_a_wait_that_ended_long_before_the_device_ran_dry_did_not_cause_it():
    b = _two_kernels(launch=50)
    b.op("aten::item", 1, 18)
    b.call("cudaStreamSynchronize", 2, 17.9, kind=CallKind.SYNC)
    assert _totals(b) == {"launch": 40_000}


def test_a_short_wait_within_the_slack_does_not_hide_the_one_that_covers_the_start():
    b = _two_kernels(launch=50)
    b.op("aten::item", 1, 30)
    b.call("cudaEventSynchronize", 2, 18.5, kind=CallKind.SYNC)
    b.call("cudaStreamSynchronize", 19, 25, kind=CallKind.SYNC)
    trace = b.build()
    found = trace.fact(gaps)
    assert trace.text(int(trace.rows["calls"]["name"][found.sync[0]])) == "cudaStreamSynchronize"
    assert found.totals()["host_sync"] == 40_000


def test_a_copy_to_pageable_memory_blocks_and_one_to_pinned_memory_does_not():
    for memory, reason in ((HostMemory.PAGEABLE, "host_sync"), (HostMemory.PINNED, "launch")):
        b = TraceBuilder()
        b.op("aten::copy_", 0, 30)
        b.call("cudaMemcpyAsync", 1, 25, kind=CallKind.COPY, correlation=1)
        b.copy("Memcpy DtoH", 10, 20, correlation=1, kind=CopyKind.DEVICE_TO_HOST, host_memory=memory)
        b.launched("next", 50, 60, 70, correlation=2)
        assert _totals(b) == {reason: 40_000}


def test_only_a_large_copy_from_pageable_memory_blocks():
    for size, reason in ((64 * 1024 + 1, "host_sync"), (64 * 1024, "launch")):
        b = TraceBuilder()
        b.call("cudaMemcpyAsync", 1, 25, kind=CallKind.COPY, correlation=1)
        b.copy("Memcpy HtoD", 10, 20, correlation=1, size=size)
        b.launched("next", 50, 60, 70, correlation=2)
        assert _totals(b) == {reason: 40_000}


def test_the_main_thread_waits_and_autograd_launches():
    b = TraceBuilder()
    b.launched("first", 0, 10, 20, correlation=1)
    b.op("aten::item", 1, 30)
    b.call("cudaStreamSynchronize", 2, 25, kind=CallKind.SYNC)
    b.op("AddBackward0", 40, 80, tid=2)
    b.launched("second", 50, 60, 70, correlation=2, tid=2)
    assert _totals(b) == {"host_sync": 40_000}


def test_a_wait_of_a_side_thread_is_not_charged_to_a_thread_that_was_at_work():
    b = TraceBuilder()
    b.launched("first", 0, 10, 20, correlation=1)
    b.launched("side", 0.5, 11, 12, correlation=3, tid=1)
    b.call("cudaStreamSynchronize", 2, 25, kind=CallKind.SYNC)
    b.op("busy", 5, 80, tid=2)
    b.launched("second", 50, 60, 70, correlation=2, tid=2)
    assert _totals(b) == {"launch": 40_000}


def test_a_wait_of_a_thread_that_launches_nothing_is_not_charged_to_another():
    b = TraceBuilder()
    b.launched("first", 0, 10, 20, correlation=1)
    b.call("cudaEventSynchronize", 2, 25, kind=CallKind.SYNC, tid=3)
    b.launched("second", 50, 60, 70, correlation=2)
    assert _totals(b) == {"launch": 40_000}


def test_work_that_starts_before_its_call_by_clock_skew_ends_the_gap_all_the_same():
    b = _two_kernels(launch=62)
    b.annotation("enumerate(DataLoader)#x", 21, 61.5)
    assert _totals(b) == {"input": 39_000, "launch": 1_000}


def test_time_in_a_data_loader_is_input_even_after_a_wait():
    b = _two_kernels(launch=50)
    b.call("cudaStreamSynchronize", 2, 22, kind=CallKind.SYNC)
    b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 25, 45)
    assert _totals(b) == {"host_sync": 20_000, "input": 20_000}


def test_a_late_launch_is_split_into_lookup_memory_calls_and_the_rest():
    b = _two_kernels(launch=50)
    b.annotation("enumerate(DataLoader)#x", 21, 26)
    b.op("TorchDynamo Cache Lookup", 24, 30)
    b.call("cudaMalloc", 28, 40, kind=CallKind.MEMORY)
    assert _totals(b) == {"input": 5_000, "compile_lookup": 4_000, "allocator": 10_000, "launch": 21_000}


def test_a_data_loader_on_another_thread_is_not_what_the_device_waits_for():
    b = _two_kernels(launch=50)
    b.annotation("enumerate(DataLoader)#x", 21, 45, tid=2)
    assert _totals(b) == {"launch": 40_000}


def test_kernels_of_one_graph_launch_were_all_queued():
    b = TraceBuilder()
    b.call("cudaGraphLaunch", 0, 5, kind=CallKind.GRAPH, correlation=1)
    for start in (10, 30, 50):
        b.kernel("node", start, start + 10, correlation=1)
    assert _totals(b) == {"dependency": 20_000}


def test_of_work_that_starts_together_the_one_launched_first_decides():
    b = _two_kernels(launch=50)
    b.launched("beside", 15, 60, 65, correlation=3, stream=8)
    assert _totals(b) == {"dependency": 40_000}


def test_devices_are_attributed_apart():
    b = _two_kernels(launch=50)
    b.launched("there", 0, 10, 30, correlation=5, device=1)
    b.launched("there", 12, 50, 60, correlation=6, device=1)
    trace = b.build()
    found = trace.fact(gaps)
    assert found.totals(0)["launch"] == 40_000
    assert found.totals(1) == {**dict.fromkeys(found.totals(1), 0), "dependency": 20_000}


def test_nothing_on_a_device_has_no_gaps():
    assert len(TraceBuilder().build().fact(gaps)) == 0


_WORK = st.lists(
    st.tuples(
        st.integers(0, 30),  # start of the launch call
        st.integers(0, 20),  # delay to the start of the kernel
        st.integers(0, 8),  # duration
        st.integers(1, 3),  # thread
        st.integers(7, 8),  # stream
        st.integers(0, 1),  # device
        st.booleans(),  # is the launch known
    ),
    min_size=1,
    max_size=14,
    unique_by=lambda item: item[0],  # of calls that begin together either may be the one that ends a gap
)
_OPS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 15), st.integers(1, 3)), max_size=6)
_WAITS = st.lists(  # longer than the slack, so that one thread has one wait at the start of a gap
    st.tuples(st.integers(0, 50), st.integers(3, 15), st.integers(1, 3)), max_size=6
)


@settings(max_examples=200, deadline=None)
@given(_WORK, _WAITS, _OPS)
def test_gaps_equal_an_attribution_written_gap_by_gap(work, waits, loading):
    b = TraceBuilder()
    for number, (launch, delay, duration, tid, stream, device, known) in enumerate(work):
        correlation = number + 1
        if known:
            b.call("cudaLaunchKernel", launch, launch + 1, correlation=correlation, tid=tid)
        start = launch + delay
        b.kernel("k", start, start + duration, correlation=correlation, stream=stream, device=device)
    taken: dict[int, int] = {}
    for start, length, tid in sorted(waits):  # calls of one thread follow each other
        begin = max(start, taken.get(tid, 0))
        taken[tid] = begin + length
        b.call("cudaStreamSynchronize", begin, begin + length, kind=CallKind.SYNC, tid=tid)
    for start, length, tid in loading:
        b.op("some op", start, start + length, tid=tid)
    trace = b.build()
    found = trace.fact(gaps)
    for device in trace.fact(device_times):
        totals = found.totals(device.device)
        assert sum(totals.values()) == device.idle_ns
        naive = naive_totals(trace, device.device)
        host = totals["launch"] + totals["allocator"] + totals["compile_lookup"] + totals["input"]
        assert (totals["unknown"], totals["dependency"]) == (naive["unknown"], naive["dependency"])
        assert (totals["host_sync"], host) == (naive["host_sync"], naive["host"])
    assert (found.charged_ns(GapCause.HOST_SYNC)[found.sync < 0] == 0).all()
