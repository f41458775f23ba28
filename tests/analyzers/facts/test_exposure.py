from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.facts.device_time import device_times
from perfscope.analyzers.facts.exposure import exposed_communication, exposed_copies
from tests.build import TraceBuilder


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


_WORK = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 1), st.sampled_from(["compute", "nccl", "copy"])),
    max_size=15,
)


@settings(deadline=None)
@given(_WORK)
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
