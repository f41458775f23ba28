from __future__ import annotations

import pytest

from perfscope.analyzers.facts.blocking_calls import base_name, blocking_calls, blocks_by_name, profiler_syncs
from perfscope.analyzers.trace import CallKind
from tests.build import TraceBuilder


@pytest.mark.parametrize(
    ("name", "base"),
    [("cudaFree_v3020", "cudaFree"), ("cuMemcpyDtoH_v2", "cuMemcpyDtoH"), ("cudaMemcpy_ptds", "cudaMemcpy"),
     ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"), ("hipFree", "hipFree")],
)  # fmt: skip
def test_version_suffixes_are_no_part_of_a_name(name, base):
    assert base_name(name) == base


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "cuCtxSynchronize", "hipMemcpyDtoH", "cudaFree", "synchronizeStream"]
)
def test_names_that_block(name):
    assert blocks_by_name(name)


@pytest.mark.parametrize(
    "name",
    ["cudaStreamWaitEvent", "cudaMemcpyAsync", "hipMemcpyAsync", "cuMemcpyDtoHAsync_v2", "cudaFreeAsync",
     "cudaLaunchKernel", "cudaEventQuery", "cudaGraphLaunch", "hipEventRecord"],
)  # fmt: skip
def test_names_that_do_not_block(name):
    assert not blocks_by_name(name)


def _with_device_wait(start: float, **around: tuple[float, float]) -> TraceBuilder:
    b = TraceBuilder()
    b.launched("a", 10, 20, 30, correlation=1)
    b.launched("b", 50, 60, 70, correlation=2)
    b.call("cudaDeviceSynchronize", start, start + 5, kind=CallKind.SYNC)
    for name, (begin, end) in around.items():
        b.op(name, begin, end)
    return b


@pytest.mark.parametrize("start", [2, 60])
def test_a_device_wait_before_or_after_all_launches_and_outside_ops_is_the_profilers(start):
    trace = _with_device_wait(start).build()
    assert len(profiler_syncs(trace)) == 1
    assert len(blocking_calls(trace)) == 0


@pytest.mark.parametrize("start", [20, 40])
def test_a_device_wait_between_launches_is_the_programs(start):
    trace = _with_device_wait(start).build()
    assert len(profiler_syncs(trace)) == 0
    assert len(blocking_calls(trace)) == 1


def test_a_device_wait_inside_an_op_is_the_programs():
    trace = _with_device_wait(60, op=(55, 80)).build()
    assert len(blocking_calls(trace)) == 1


def test_a_device_wait_in_a_frame_of_the_profiler_is_not():
    b = _with_device_wait(40)
    b.python("torch/autograd/profiler.py(419): __exit__", 35, 50)
    assert len(blocking_calls(b.build())) == 0


def test_a_stream_wait_is_never_the_profilers():
    b = TraceBuilder()
    b.call("cudaStreamSynchronize", 0, 5, kind=CallKind.SYNC)
    assert len(blocking_calls(b.build())) == 1
