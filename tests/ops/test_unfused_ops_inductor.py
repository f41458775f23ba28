"""unfused_ops on what inductor refused to fuse: priced on a GPU, structural without time, CPU caches, no borders."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.devices import find_device
from perfscope.analyzers.engine import judge
from perfscope.analyzers.ops.fusion import forward_chains, fusion_reason
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.torch_compile.inductor_fusion import refused_pairs
from perfscope.model.compile_log import (
    CodeLine,
    CompiledKernel,
    CompileLog,
    FusionRefusal,
    Graph,
    GraphNode,
    KernelBackend,
)
from perfscope.model.finding import Finding, Outcome
from perfscope.model.trace import Trace
from tests.build import TraceBuilder, replace
from tests.torch_compile.logs import compiled, log_trace

RULE = load_rule("unfused_ops")
MIB = 1 << 20
H100 = find_device("NVIDIA H100 80GB HBM3")
SIZES = "numel/rnumel mismatch (reduce) (1024, 4096), (4096, 1024)"


def line(number: int) -> CodeLine:
    return CodeLine(file="/home/user/train.py", line=number, function="forward")


def node(name: str, op: str, *inputs: str, at: int, rows: int = 1024) -> GraphNode:
    """A float32 value of ``rows`` times 4 KiB."""
    return GraphNode(name=name, op=op, inputs=inputs, dtype="float32", shape=(rows, 1024), place=line(at))


def log(*, reason: str = SIZES, rows: int = 1024, backend: KernelBackend = "triton", outputs: tuple[str, ...] = ("b",),
        **more: Any) -> CompileLog:  # fmt: skip
    """``x -> a`` and ``a -> b`` in two kernels; ``a`` is of ``rows * 4`` KiB."""
    graph = Graph(
        compile_id="0/0",
        direction="forward",
        inputs=(node("x", "placeholder", at=1, rows=rows),),
        nodes=(
            node("a", "aten.exp.default", "x", at=10, rows=rows),
            node("b", "aten.sum.dim_IntList", "a", at=11, rows=rows),
        ),
        outputs=outputs,
    )
    prefix = "triton_poi" if backend == "triton" else "cpp"
    kernels = tuple(
        CompiledKernel(
            name=f"{prefix}_fused_{name}_{index}", backend=backend, compile_id="0/0", direction="forward",
            nodes=(name,), places=(line(10 + index),), handle=f"{prefix}_fused_{name}_{index}:{index}",
        )
        for index, name in enumerate(("a", "b"))
    )  # fmt: skip
    refusal = FusionRefusal(
        compile_id="0/0", direction="forward", first="op0", second="op1", reason=reason, first_nodes=("a",),
        second_nodes=("b",), first_kernel=kernels[0].name, second_kernel=kernels[1].name,
        shared_bytes=rows * 4096, common_read_bytes=0,
    )  # fmt: skip
    refusal = replace(refusal, **more)
    return CompileLog(
        path="x.log", compiles=(compiled(),), graphs=(graph,), kernels=kernels, refusals=(refusal,), has_refusals=True
    )


def judged(found: CompileLog) -> Outcome:
    return judge(RULE, log_trace(found))


def only_finding(outcome: Outcome) -> Finding:
    (finding,) = outcome.findings
    return finding


def on_gpu(found: CompileLog, *, step: float = 1000, first: float = 40, device: str = "NVIDIA H100 80GB HBM3") -> Trace:
    """A step in us; the two kernels run once, for ``first`` and 40 us."""
    build = TraceBuilder()
    build.device(0, device)
    build.step(1, 0, step)
    build.annotation("Torch-Compiled Region: 0/0", 0, 90)
    build.annotation("## Call CompiledFxGraph fabc ##", 1, 80)
    for index, kernel in enumerate(found.kernels):
        build.op(kernel.name, 10 + 10 * index, 15 + 10 * index)
        build.launched(kernel.name, 11 + 10 * index, 100 + 100 * index, 100 + 100 * index + (first, 40)[index],
                       correlation=index + 1)  # fmt: skip
    build.kernel("gemm", 400, step)
    trace = build.build()
    trace = replace(trace, compile_log=found)
    return replace(trace, recorded=trace.recorded | {"compile_log"})


def test_on_a_gpu_the_bytes_are_priced_at_its_bandwidth() -> None:
    finding = only_finding(judge(RULE, on_gpu(log(rows=16 * 1024))))
    # 64 MiB written and read again
    assert H100 is not None
    assert finding.cost_bytes == 128 * MIB
    assert finding.cost_ns == finding.cost_ns_per_step == round(128 * MIB / H100.memory_bandwidth * 1e9)
    assert (finding.basis, finding.severity) == ("modelled", "medium")
    assert finding.where.label() == "/home/user/train.py:11"
    assert "different numbers of elements" in finding.detail
    row = finding.evidence[0]
    assert (row["written_at"], row["read_at"]) == ("/home/user/train.py:10", "/home/user/train.py:11")
    assert (row["runs"], row["kernels_ns"], row["inductor_says"]) == (1, 80_000, SIZES)


def test_no_more_is_saved_than_both_kernels_took() -> None:
    assert only_finding(judge(RULE, on_gpu(log(rows=1 << 20)))).cost_ns == 80_000


def test_below_the_threshold_it_is_clean() -> None:
    # 64 MiB twice are 40.0 us: 2% of 2,002 us
    assert judge(RULE, on_gpu(log(rows=16 * 1024), step=1990)).status == "flagged"
    assert judge(RULE, on_gpu(log(rows=16 * 1024), step=2100)).status == "clean"


def test_a_value_that_is_needed_elsewhere_must_be_written_anyway() -> None:
    finding = only_finding(judge(RULE, on_gpu(log(rows=16 * 1024, outputs=("a", "b")))))
    assert finding.cost_bytes == 64 * MIB
    assert finding.evidence[0]["also_needed_elsewhere"] == "yes"


def test_without_a_recording_it_is_a_share_of_the_bytes() -> None:
    finding = only_finding(judged(log()))
    # x, a written, a read, b: 4 MiB each, of which a's two go
    assert (finding.basis, finding.cost_ns, finding.cost_bytes) == ("structural", None, 8 * MIB)
    assert "(50.0% of" in finding.title
    assert finding.severity == "medium"
    assert judged(log(rows=127)).status == "clean"
    assert judged(log(rows=128)).status == "flagged"


@pytest.mark.parametrize(
    "reason",
    [
        "intermediate nodes between node1 & node2",
        "node1 is extern but not a triton kernel",
        "template epilogue not satisfied",
        "register spilling of the fused kernel",
    ],
)
def test_borders_that_cannot_be_fused_are_clean(reason: str) -> None:
    assert judged(log(reason=reason)).status == "clean"


def test_neighbours_without_a_value_between_them_are_clean() -> None:
    assert judged(log(shared_bytes=0, common_read_bytes=4 * MIB)).status == "clean"
    assert judged(log(shared_bytes=None)).status == "clean"


def test_kernels_that_the_log_does_not_name_are_priced_by_their_bytes() -> None:
    # torch 2.13 does not say which nodes the kernels of a backward graph compute
    unknown = log(rows=1 << 20, first_kernel=None, second_kernel=None)
    unnamed = replace(unknown, kernels=tuple(replace(one, nodes=()) for one in unknown.kernels))
    trace = on_gpu(unnamed, step=10_000)
    (finding,) = judge(RULE, trace).findings
    assert H100 is not None
    assert finding.cost_ns == round((8 << 30) / H100.memory_bandwidth * 1e9)
    assert finding.evidence[0]["writes"] == "op0"


def test_a_graph_that_did_not_run_costs_nothing() -> None:
    ran = log(rows=16 * 1024)
    other = replace(ran.refusals[0], compile_id="1/0")
    graph = replace(ran.graphs[0], compile_id="1/0")
    assert judge(RULE, on_gpu(replace(ran, refusals=(other,), graphs=(*ran.graphs, graph)))).status == "clean"


def test_without_nodes_of_kernels_the_share_is_of_what_all_ops_would_move() -> None:
    found = log()
    unnamed = replace(found, kernels=tuple(replace(one, nodes=()) for one in found.kernels))
    # x, a written, a read, b: what both ops move one by one
    assert "(50.0% of" in only_finding(judged(unnamed)).title


def test_what_a_later_round_fused_is_clean() -> None:
    found = log()
    one = replace(found.kernels[0], nodes=("a", "b"))
    assert log_trace(replace(found, kernels=(one,))).fact(refused_pairs) == ()
    assert judged(replace(found, kernels=(one,))).status == "clean"


def test_on_a_cpu_values_that_fit_its_caches_are_clean() -> None:
    assert judged(log(backend="cpp", rows=8191)).status == "clean"
    finding = only_finding(judged(log(backend="cpp", rows=8192)))
    assert (finding.basis, finding.severity) == ("structural", "low")


def test_loops_of_one_cpp_function_still_pass_values_through_memory() -> None:
    found = log(backend="cpp", rows=8192)
    one = replace(found.kernels[0], nodes=("a", "b"))
    together = replace(found, kernels=(one,), refusals=(replace(found.refusals[0], second_kernel=one.name),))
    assert only_finding(judged(together)).cost_bytes == 64 * MIB


def test_a_frame_that_was_compiled_again_counts_once() -> None:
    found = log()
    twice = replace(
        found,
        graphs=(*found.graphs, replace(found.graphs[0], compile_id="0/1")),
        kernels=(*found.kernels, *(replace(one, compile_id="0/1") for one in found.kernels)),
        refusals=(*found.refusals, replace(found.refusals[0], compile_id="0/1")),
    )
    assert only_finding(judged(twice)).cost_bytes == 8 * MIB


def test_an_unknown_reason_stands_for_itself() -> None:
    finding = only_finding(judged(log(reason="the moon is full")))
    assert 'inductor gives "the moon is full"' in finding.detail
    assert fusion_reason("memory deps did not match").fix


def test_a_log_without_decisions_abstains() -> None:
    outcome = judged(replace(log(), refusals=(), has_refusals=False))
    assert outcome.status == "abstained"
    assert "inductor's fusion decisions" in (outcome.reason or "")


def test_ops_inside_a_compiled_graph_are_not_guessed_to_be_fusable() -> None:
    def chains(wrapped: str) -> int:
        build = TraceBuilder()
        build.annotation(wrapped, 0, 50)
        for index, name in enumerate(("aten::mul", "aten::add")):
            build.op(name, 1 + 10 * index, 9 + 10 * index, shapes="[[64, 64], [64, 64]]", dtypes='["float", "float"]')
            build.launched("void at::native::vectorized_elementwise_kernel<4>", 2 + 10 * index, 60 + 20 * index,
                           70 + 20 * index, correlation=index + 1)  # fmt: skip
        return len(forward_chains(build.build()))

    assert chains("## Call CompiledFxGraph fabc ##") == 0
    assert chains("my region") == 1
