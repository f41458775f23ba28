from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.time.account import idle_intervals
from perfscope.analyzers.time.device_time import device_busy, device_times
from perfscope.analyzers.time.steps import account_windows
from perfscope.model.trace import MISSING, CallKind, CopyKind, HostMemory, Trace
from tests.build import TraceBuilder
from tests.time.naive_idle_calls import naive_totals


def _two_kernels(launch: float) -> TraceBuilder:
    """Kernel 10-20 us, idle, kernel 60-70 us; the second launched at ``launch``."""
    b = TraceBuilder()
    b.launched("first", 0, 10, 20, correlation=1)
    b.launched("second", launch, 60, 70, correlation=2)
    return b


def window(trace: Trace) -> tuple[int, int]:
    """First begin and last end of the steps, ns."""
    windows = trace.fact(account_windows)
    return int(windows.starts.min()), int(windows.ends.max())


def totals_of(trace: Trace, device: int) -> Counter[str]:
    """Idle time between work of a device in ns, by what is known of the calls at its ends."""
    idle, first = trace.fact(idle_intervals)[device], int(trace.fact(device_busy)[device].starts[0])
    low, _ = window(trace)
    between = idle.ended & (idle.spans.starts > max(first, low))
    reasons = np.select(
        [idle.queued, ~idle.late, idle.wait != MISSING], ["dependency", "unknown", "host_sync"], "launch"
    )
    result: Counter[str] = Counter()
    for reason, ns in zip(
        reasons[between].tolist(), (idle.spans.ends - idle.spans.starts)[between].tolist(), strict=True
    ):
        result[reason] += ns
    return result


def _totals(b: TraceBuilder) -> dict[str, int]:
    trace = b.build()
    found = totals_of(trace, 0)
    assert sum(found.values()) == trace.fact(device_times)[0].idle_ns
    return dict(found)


def _wait(b: TraceBuilder) -> str:
    """Name of the wait that emptied the queue before the second kernel."""
    trace = b.build()
    assert _totals(b) == {"host_sync": 40_000}
    return trace.text(int(trace.rows["calls"]["name"][trace.fact(idle_intervals)[0].wait[-1]]))


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
    assert _wait(b) == name


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
    assert _wait(b) == "cudaStreamSynchronize"


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
    assert totals_of(trace, 0) == {"launch": 40_000}
    assert totals_of(trace, 1) == {"dependency": 20_000}


def test_an_empty_trace_has_no_idle_time():
    assert TraceBuilder().build().fact(idle_intervals) == {}


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


@settings(max_examples=50, deadline=None)
@given(_WORK, _WAITS, _OPS)
def test_calls_at_the_ends_equal_an_attribution_written_interval_by_interval(work, waits, loading):
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
    for device in (device for device in trace.fact(device_times) if device.busy_ns):
        found, naive = totals_of(trace, device.device), naive_totals(trace, device.device, *window(trace))
        assert sum(found.values()) == device.idle_ns
        assert found == naive
