"""excess_remat on compiled graphs: products made again, elementwise ops left alone, names that only look alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.analyzers.compile_log import CompiledKernel, CompileLog, Graph, GraphNode, Place
from perfscope.analyzers.engine import judge
from perfscope.analyzers.facts.inductor_recompute import graph_recompute
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import RECORDED, Trace
from tests.analyzers.compiled import compiled, log_trace
from tests.build import TraceBuilder

RULE = load_rule("excess_remat")
LINE = Place(file="/home/user/train.py", line=30, function="forward")
KERNEL = CompiledKernel(
    name="extern_kernels.mm", backend="extern", compile_id="0/0", direction="backward", nodes=("mm",), places=(LINE,),
    handle="extern_kernels.mm:1",
)  # fmt: skip


def node(name: str, op: str, *inputs: str, shape: tuple[int | str, ...] = (64, 256)) -> GraphNode:
    return GraphNode(name=name, op=op, inputs=inputs, dtype="bfloat16", shape=shape, place=LINE)


PRODUCT = node("mm", "aten.mm.default", "x", "w")
GELU = node("gelu", "aten.gelu.default", "mm")


def log(*again: GraphNode, first: tuple[GraphNode, ...] = (PRODUCT, GELU)) -> CompileLog:
    """A backward graph that computes ``again``."""
    inputs = (node("x", "placeholder", shape=(64, 128)), node("w", "placeholder", shape=(128, 256)))
    forward = Graph(compile_id="0/0", direction="forward", nodes=first, inputs=inputs)
    backward = Graph(
        compile_id="0/0", direction="backward", nodes=again, inputs=inputs, recomputed=tuple(one.name for one in again)
    )
    return CompileLog(path="x.log", compiles=(compiled(),), graphs=(forward, backward))


def judged(found: CompileLog) -> Outcome:
    return judge(RULE, log_trace(found))


def test_a_product_made_again_is_flagged_with_its_flops() -> None:
    (finding,) = judged(log(PRODUCT, GELU)).findings
    assert (finding.basis, finding.cost_ns, finding.where.line) == ("structural", None, 30)
    row = finding.evidence[0]
    assert (row["flops"], row["result_bytes"]) == (2 * 64 * 128 * 256, 64 * 256 * 2)
    assert (row["recomputed_in_graph"], row["recomputed_in_graph_bytes"]) == (2, 2 * 64 * 256 * 2)
    assert "4.19 MFLOPs a run" in finding.title


@pytest.mark.parametrize("op", ["aten.gelu.default", "aten.permute.default", "aten.mm_scaled.default"])
def test_cheap_ops_are_rightly_made_again(op: str) -> None:
    cheap = node("gelu", op, "mm")
    assert judged(log(cheap, first=(PRODUCT, cheap))).status == "clean"


@pytest.mark.parametrize(
    "other", [node("mm", "aten.mm.default", "tangents", "w"), node("mm", "aten.mm.default", "x", "w", shape=(8, 8))]
)
def test_a_name_given_twice_is_not_the_same_product(other: GraphNode) -> None:
    assert judged(log(other)).status == "clean"


def test_dynamic_sizes_have_no_flops() -> None:
    dynamic = node("mm", "aten.mm.default", "x", "w", shape=("s0", 256))
    (finding,) = judged(log(dynamic, first=(dynamic,))).findings
    assert finding.evidence[0]["flops"] is None


def recorded(product_us: float) -> Trace:
    """A step of 1 ms whose backward calls the product for so long."""
    build = TraceBuilder(recorded=frozenset({"host_ops", "autograd", "steps"}))
    build.step(1, 0, 1000)
    build.annotation("## Call CompiledFxGraph fabc ##", 100, 900)
    build.op("aten::mm", 200, 200 + product_us)
    trace = build.build()
    trace.compile_log = replace(log(PRODUCT), kernels=(KERNEL,))
    return trace


def test_its_time_is_that_of_its_kernel() -> None:
    (finding,) = judge(RULE, recorded(60)).findings
    assert (finding.basis, finding.cost_ns, finding.cost_ns_per_step) == ("measured", 60_000, 60_000)
    assert finding.severity == "high"


def test_below_the_threshold_it_is_clean() -> None:
    assert judge(RULE, recorded(9.9)).status == "clean"
    assert judge(RULE, recorded(10)).status == "flagged"


def test_a_log_without_a_backward_abstains() -> None:
    found = log(PRODUCT)
    outcome = judged(replace(found, graphs=found.graphs[:1]))
    assert outcome.reason == f"not recorded: {RECORDED['host_ops']}; {RECORDED['autograd']}"
    assert log_trace(replace(found, graphs=found.graphs[:1])).fact(graph_recompute) == ()
