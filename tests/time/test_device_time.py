from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.time.device_time import DeviceTime, device_times
from perfscope.analyzers.time.exposure import exposed_communication, exposed_copies
from tests.build import TraceBuilder


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
