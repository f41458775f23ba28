"""Steps with regions of torch.compile: a log as inductor writes it, and a model that is compiled here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.readers import load_path
from perfscope.model.compile_log import Compile, CompiledKernel, CompileLog, Graph, GraphNode
from perfscope.plugins.port.compiled_step import compiled_step
from perfscope.plugins.port.ledger import ledger_of, place
from perfscope.plugins.port.sections import folded
from perfscope.plugins.port.torch_step import torch_step
from tests.build import TraceBuilder

PROGRAM = Path(__file__).with_name("compiled_program.py")


def node(name: str, op: str, *inputs: str, shape: tuple[int, ...]) -> GraphNode:
    return GraphNode(name=name, op=op, inputs=inputs, dtype="float32", shape=shape)


def kernel(name: str, direction: str, *nodes: str, number: int) -> CompiledKernel:
    backend = "extern" if name.startswith("extern") else "cpp"
    return CompiledKernel(
        name=name, backend=backend, compile_id="0/0", direction=direction, nodes=nodes, handle=f"{name}:{number}",  # type: ignore[arg-type]
    )  # fmt: skip


def log() -> CompileLog:
    """Two linear layers with a GELU between them: (8, 4) -> (8, 16) -> (8, 4); the backward has no nodes."""
    inputs = (
        node("primals_1", "placeholder", shape=(8, 4)),
        node("primals_2", "placeholder", shape=(16, 4)),
        node("primals_3", "placeholder", shape=(4, 16)),
    )
    forward = Graph(
        compile_id="0/0",
        direction="forward",
        inputs=inputs,
        nodes=(
            node("permute", "aten.permute.default", "primals_2", shape=(4, 16)),
            node("mm", "aten.mm.default", "primals_1", "permute", shape=(8, 16)),
            node("tanh", "aten.tanh.default", "mm", shape=(8, 16)),
            node("permute_1", "aten.permute.default", "primals_3", shape=(16, 4)),
            node("mm_1", "aten.mm.default", "tanh", "permute_1", shape=(8, 4)),
        ),
        outputs=("mm_1", "primals_1", "primals_3", "tanh"),
    )
    backward = Graph(
        compile_id="0/0",
        direction="backward",
        inputs=(inputs[0], inputs[2], node("tanh", "placeholder", shape=(8, 16)),
                node("tangents_1", "placeholder", shape=(8, 4))),
        nodes=(
            node("permute_2", "aten.permute.default", "tangents_1", shape=(4, 8)),
            node("mm_2", "aten.mm.default", "permute_2", "tanh", shape=(4, 16)),
            node("mm_3", "aten.mm.default", "tangents_1", "primals_3", shape=(8, 16)),
            node("mul", "aten.mul.Tensor", "tanh", shape=(8, 16)),
            node("mul_1", "aten.mul.Tensor", "mm_3", "mul", shape=(8, 16)),
            node("permute_3", "aten.permute.default", "mul_1", shape=(16, 8)),
            node("mm_4", "aten.mm.default", "permute_3", "primals_1", shape=(16, 4)),
        ),
        outputs=("mm_2", "mm_4"),
    )  # fmt: skip
    arguments = ("L_x_", "L_self_modules_up_parameters_weight_", "L_self_modules_down_parameters_weight_")
    return CompileLog(
        path="log",
        compiles=(Compile(compile_id="0/0", function="forward", place=None, arguments=arguments),),
        graphs=(forward, backward),
        kernels=(
            kernel("extern_kernels.mm", "forward", "mm", number=1),
            kernel("cpp_fused_tanh_0", "forward", "tanh", number=2),
            kernel("extern_kernels.mm", "forward", "mm_1", number=3),
            kernel("extern_kernels.mm", "backward", number=1),
            kernel("extern_kernels.mm", "backward", number=2),
            kernel("cpp_fused_mul_0", "backward", number=3),
            kernel("extern_kernels.mm", "backward", number=4),
        ),
        has_provenance=True,
    )


def steps(count: int = 2) -> TraceBuilder:
    """Steps of 100 us: forward kernels of 10 us, a loss outside, backward kernels of 5 us, an optimizer of 7 us."""
    build = TraceBuilder()
    for number in range(count):
        start = 100 * number
        build.step(number, start, start + 100)
        build.annotation("Torch-Compiled Region: 0/0", start, start + 32)
        build.annotation("## Call CompiledFxGraph fabc ##", start + 1, start + 31)
        for index, name in enumerate(("aten::mm", "graph_0_cpp_fused_tanh_0", "aten::mm")):
            build.op(name, start + 1 + 10 * index, start + 11 + 10 * index)
        build.op("aten::mse_loss", start + 40, start + 43)
        build.annotation("autograd::engine::evaluate_function: CompiledFunctionBackward", start + 50, start + 75)
        build.annotation("## Call CompiledFxGraph fdef ##", start + 50, start + 75)
        for index, name in enumerate(("aten::mm", "aten::mm", "graph_1_cpp_fused_mul_0", "aten::mm")):
            build.op(name, start + 50 + 5 * index, start + 55 + 5 * index)
        build.annotation("Optimizer.step#SGD.step", start + 80, start + 90)
        build.op("aten::_foreach_add_", start + 81, start + 88)
    return build


def test_kernels_of_compiled_graphs_are_placed_at_their_layers() -> None:
    from tests.build import replace

    program = compiled_step(replace(steps().build(), compile_log=log()))
    assert program is not None
    assert [(weight.name, weight.elements) for weight in program.weights] == [("up", 64), ("down", 64)]
    both = place(program, program)
    ledger = ledger_of(both)  # raises if a sum is not exact
    rows = {(row.layer, row.phase): row.a for row in ledger.rows if row.a is not None}
    assert {key: amounts.flops for key, amounts in rows.items() if amounts.flops} == {
        ("up", "forward"): 1024, ("up", "backward"): 1024, ("down", "forward"): 1024, ("down", "backward"): 2048,
    }  # fmt: skip
    assert rows["up", "forward"].time_ns == 20_000  # with the activation after it
    assert rows["down", "forward"].time_ns == 10_000
    assert rows["outside of layers", "forward"].time_ns == 3_000
    assert rows["all weights", "optimizer"].time_ns == 7_000
    assert sum(amounts.time_ns or 0 for amounts in rows.values()) == ledger.a.step_ns == 100_000
    assert rows["up", "forward"].bytes == 4 * (8 * 4 + 16 * 4 + 8 * 16 + 2 * 8 * 16)


def test_a_graph_that_runs_twice_is_two_layers() -> None:
    from tests.build import replace

    build = TraceBuilder()
    build.step(0, 0, 100)
    for start in (0, 40):
        build.annotation("Torch-Compiled Region: 0/0", start, start + 32)
        build.annotation("## Call CompiledFxGraph fabc ##", start + 1, start + 31)
        for index, name in enumerate(("aten::mm", "graph_0_cpp_fused_tanh_0", "aten::mm")):
            build.op(name, start + 1 + 10 * index, start + 11 + 10 * index)
    program = compiled_step(replace(build.build(), compile_log=log()))
    assert program is not None
    assert [weight.stacked for weight in program.weights] == [2, 2]
    ledger = ledger_of(place(program, program))
    assert ledger.a.layers == 4
    assert ledger.a.total.flops == 4 * 1024
    assert ledger.a.total.launches == 6


def test_without_compiled_kernels_there_is_no_step() -> None:
    from tests.build import replace

    assert compiled_step(steps().build()) is None
    build = TraceBuilder()
    build.step(0, 0, 100)
    assert compiled_step(replace(build.build(), compile_log=log())) is None


@pytest.mark.slow
@pytest.mark.torch
def test_a_compiled_model_has_the_products_of_the_eager_one(tmp_path: Path) -> None:
    sides = []
    for name in ("eager", "compiled"):
        words = ["-m", "perfscope", "run", "-q", "--no-report", "-o", str(tmp_path), "--run-id", name]
        subprocess.run([sys.executable, *words, str(PROGRAM), name], check=True, capture_output=True)
        made = torch_step(load_path(str(tmp_path / name)).traces[0])
        assert made is not None
        sides.append(made)
    ledger = ledger_of(place(*sides))
    assert ledger.unpaired == ()
    for row in folded(ledger.rows):
        assert (row.a.flops if row.a else 0) == (row.b.flops if row.b else 0), row
    assert ledger.b.total.flops > 0
