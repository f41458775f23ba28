"""Measured time of compiled kernels: of the device where they ran on one, else of their host span."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.spans.compiled_regions import call_name, compiled_kernel, compiled_rows, user_line
from perfscope.analyzers.spans.rows import lineage
from perfscope.analyzers.time.sites import call_site
from perfscope.analyzers.torch_compile.summary import compiled_kernel_times
from perfscope.model.compile_log import CodeLine, CompiledKernel, CompileLog, Direction, KernelBackend
from perfscope.model.trace import Trace
from tests.build import TraceBuilder


def line(number: int, file: str = "/home/user/train.py") -> CodeLine:
    return CodeLine(file=file, line=number, function="forward")


def kernel(name: str, *numbers: int, compile_id: str = "0/0", direction: Direction = "forward", at: int | None = 1,
           backend: KernelBackend = "triton", calls: int = 1) -> CompiledKernel:  # fmt: skip
    return CompiledKernel(
        name=name, backend=backend, compile_id=compile_id, direction=direction, calls=calls,
        places=tuple(line(number) for number in numbers), handle=None if at is None else f"{name}:{at}",
    )  # fmt: skip


def run(*names: str, region: str | None = "0/0", hashed: str = "fabc") -> Trace:
    """One call of a graph with these children, a us each."""
    build = TraceBuilder()
    if region is not None:
        build.annotation(f"Torch-Compiled Region: {region}", 0, 100)
    build.annotation(f"## Call CompiledFxGraph {hashed} ##", 1, 99)
    for index, name in enumerate(names):
        build.op(name, 2 + 2 * index, 3 + 2 * index)
    return build.build()


def lines(trace: Trace, *kernels: CompiledKernel) -> dict[str, list[int | None]]:
    """Name of a span to the lines of its runs, in order."""
    trace = replace(trace, compile_log=CompileLog(path="x.log", kernels=kernels))
    found: dict[str, list[int | None]] = {}
    slices = trace.rows["slices"]
    for row in range(len(slices)):
        name = trace.text(int(slices["name"][row]))
        if call_name(name) is not None:
            found.setdefault(name, []).append(call_site(trace, row).line)
    return found


def test_calls_of_one_name_are_told_apart_by_their_order() -> None:
    trace = run("aten::mm", "triton_poi_fused_add_0", "aten::empty", "aten::mm", "triton_poi_fused_add_0")
    kernels = (
        kernel("extern_kernels.mm", 10, at=1, backend="extern"),
        kernel("triton_poi_fused_add_0", 11, at=2),
        kernel("extern_kernels.mm", 12, at=3, backend="extern"),
        kernel("triton_poi_fused_add_0", 13, at=4),
    )
    found = lines(trace, *kernels)
    assert found["aten::mm"] == [10, 12]
    assert found["triton_poi_fused_add_0"] == [11, 13]
    assert found["aten::empty"] == [None]


def test_the_region_says_which_of_two_compilations_ran() -> None:
    trace = run("triton_poi_fused_add_0", region="0/1")
    both = [kernel("triton_poi_fused_add_0", 10 + index, compile_id=f"0/{index}") for index in range(2)]
    assert lines(trace, *both) == {"triton_poi_fused_add_0": [11]}


def test_a_backward_graph_is_known_by_its_kernels() -> None:
    trace = run("graph_0_cpp_fused_mul_0", "aten::mm", region=None)
    kernels = (
        kernel("cpp_fused_mul_0", 10, backend="cpp"),
        kernel("cpp_fused_mul_0", 11, direction="backward", at=1, backend="cpp"),
        kernel("extern_kernels.mm", 12, direction="backward", at=2, backend="extern"),
    )
    # both fit what ran; the forward one has no product, but this call could have been its own
    assert lines(trace, *kernels)["graph_0_cpp_fused_mul_0"] == [None]
    more = run("graph_0_cpp_fused_sum_1", "graph_0_cpp_fused_mul_0", region=None)
    found = lines(more, *kernels, kernel("cpp_fused_sum_1", 13, compile_id="1/0", at=1, backend="cpp"),
                  kernel("cpp_fused_mul_0", 14, compile_id="1/0", at=2, backend="cpp"))  # fmt: skip
    assert found == {"graph_0_cpp_fused_sum_1": [13], "graph_0_cpp_fused_mul_0": [14]}


def test_a_frame_compiled_again_has_the_same_lines() -> None:
    trace = run("triton_poi_fused_add_0", region=None)
    again = [kernel("triton_poi_fused_add_0", 11, compile_id=f"0/{index}") for index in range(3)]
    assert lines(trace, *again) == {"triton_poi_fused_add_0": [11]}


def test_without_numbers_a_name_stands_for_all_its_calls() -> None:
    trace = run("triton_poi_fused_add_0", "triton_poi_fused_add_0")
    assert lines(trace, kernel("triton_poi_fused_add_0", 11, at=None, calls=2)) == {"triton_poi_fused_add_0": [11, 11]}


def test_outside_of_graph_calls_only_a_single_name_is_joined() -> None:
    build = TraceBuilder()
    build.op("triton_poi_fused_add_0", 0, 1)
    build.op("aten::mm", 2, 3)
    one = kernel("triton_poi_fused_add_0", 11)
    product = kernel("extern_kernels.mm", 12, backend="extern")
    found = lines(build.build(), one, product)
    assert found == {"triton_poi_fused_add_0": [11], "aten::mm": [None]}
    two = kernel("triton_poi_fused_add_0", 15, compile_id="1/0")
    assert lines(build.build(), one, two, product)["triton_poi_fused_add_0"] == [None]


def test_the_users_line_comes_before_a_librarys() -> None:
    library = line(5, "/usr/lib/python3/site-packages/norms/layers.py")
    held = CompiledKernel(name="k", backend="cpp", compile_id="0/0", direction="forward", places=(library, line(7)))
    assert user_line(held) == line(7)
    alone = CompiledKernel(name="k", backend="cpp", compile_id="0/0", direction="forward", places=(library,))
    assert user_line(alone) == library


def test_without_a_log_nothing_is_joined() -> None:
    trace = run("triton_poi_fused_add_0")
    assert trace.fact(compiled_rows) == {}
    assert compiled_kernel(trace, 2) is None


@pytest.mark.corpus
def test_triton_kernels_of_a_real_trace_lead_to_their_call(corpus: Path) -> None:
    (trace,) = load_all(corpus / "kineto" / "TraceLens__torch_compile_triton.json.gz")
    names = (
        "triton_red_fused_add_mean_mul_pow_rsqrt_0", "triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1",
        "triton_poi_fused__unsafe_view_mul_silu_2", "triton_poi_fused__unsafe_view_add_3",
    )  # fmt: skip
    # no log came with this trace: its kernels are given lines here, to see each device kernel arrive at its own
    kernels = tuple(kernel(name, index, at=index) for index, name in enumerate(names))
    trace = replace(trace, compile_log=CompileLog(path="x.log", kernels=kernels))
    device = trace.rows["kernels"]
    arrived = {}
    for row in range(len(device)):
        name = trace.text(int(device["name"][row]))
        if name.startswith("triton_"):
            assert list(lineage(trace, int(device["op"][row])))
            arrived[name] = call_site(trace, int(device["op"][row])).line
    assert arrived == {name: index for index, name in enumerate(names)}


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
    return replace(trace, compile_log=CompileLog(path="x.log", kernels=KERNELS))


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
