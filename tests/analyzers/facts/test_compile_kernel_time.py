"""Measured time of compiled kernels: of the device where they ran on one, else of their host span."""

from __future__ import annotations

from perfscope.analyzers.compile_log import CompileLog
from perfscope.analyzers.facts.compile_kernel_time import compiled_kernel_times
from perfscope.analyzers.trace import Trace
from tests.analyzers.facts.test_compiled_kernels import kernel
from tests.build import TraceBuilder

KERNELS = (kernel("extern_kernels.mm", 10, at=1, backend="extern"), kernel("triton_poi_fused_add_0", 11, at=2))


def graph_call() -> TraceBuilder:
    build = TraceBuilder()
    build.annotation("Torch-Compiled Region: 0/0", 0, 100)
    build.annotation("## Call CompiledFxGraph fabc ##", 1, 99)
    build.op("aten::mm", 2, 12)
    build.op("triton_poi_fused_add_0", 20, 25)
    return build


def logged(build: TraceBuilder) -> Trace:
    trace = build.build()
    trace.compile_log = CompileLog(path="x.log", kernels=KERNELS)
    return trace


def test_on_a_cpu_the_span_of_a_call_is_its_time() -> None:
    assert compiled_kernel_times(logged(graph_call())) == {0: 10_000, 1: 5_000}


def test_on_a_device_it_is_that_of_the_kernels_they_launch() -> None:
    build = graph_call()
    build.launched("sm90_gemm", 3, 40, 70, correlation=1)
    build.launched("splitk_reduce", 5, 70, 75, correlation=2)
    build.launched("triton_poi_fused_add_0", 21, 80, 82, correlation=3)
    build.launched("of_nothing_compiled", 200, 300, 400, correlation=4)
    assert compiled_kernel_times(logged(build)) == {0: 35_000, 1: 2_000}


def test_without_a_log_there_is_none() -> None:
    assert compiled_kernel_times(graph_call().build()) == {}
