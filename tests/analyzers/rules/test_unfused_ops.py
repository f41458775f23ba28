"""Chains from the op graph and from a bare trace; fused and unrelated ops stay clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.op_graph import OpGraph
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder

ELEMENTWISE = "vectorized_elementwise_kernel<4>"
SIZE = 4 * 64 * 128


def outcome(trace: Trace) -> Outcome:
    return judge(load_rule("unfused_ops"), trace)


def layers(count: int = 3, *, phase: str = "forward", split: bool = False, ballast: int = 0) -> OpGraph:
    """``count`` layers of add -> mul -> silu between matmuls, all on the same three lines."""
    g = GraphBuilder()
    x, w = g.input((64, 128)), g.input((128, 128), parameter=True)
    for layer in range(count):
        more = {"module": f"layers.{layer}.mlp", "file": "mlp.py", "function": "MLP.forward", "phase": phase}
        h = g.op("mm", [x, w], shape=(64, 128), line=40, **more)
        h = g.op("add", [h, x], line=41, **more)
        if split:
            g.op("_local_scalar_dense", [x], shape=(), host_read="item", **more)
        h = g.op("mul", [h, h], line=42, **more) if not split else g.op("mm", [h, w], shape=(64, 128), **more)
        x = g.op("silu", [h], line=43, **more)
    if ballast:
        g.op("mm", [g.input((ballast,))], shape=(1,))
    return g.graph(live=[x])


def timed(
    graph: OpGraph | None, *, step_us: float = 1000, us: float = 10, recorded: frozenset[str] = EVERYTHING
) -> Trace:
    """Three layers: mm 50 us and three elementwise kernels of ``us``."""
    t = TraceBuilder(op_graph=graph, recorded=recorded)
    t.step(0, 0, step_us)
    t.python("mlp.py(40): forward", 0, 90)
    at, number = 100.0, 0
    for _ in range(3):
        for name, took in (("mm", 50.0), ("add", us), ("mul", us), ("silu", us)):
            kernel = "gemm" if name == "mm" else ELEMENTWISE
            shapes = [[64, 128]] if name in ("silu",) else [[64, 128], [64, 128]]
            t.op(f"aten::{name}", 1 + 4 * number, 4 + 4 * number, external_id=number, shapes=json.dumps(shapes),
                 dtypes=json.dumps(["float"] * len(shapes)))  # fmt: skip
            t.kernel(kernel, at, at + took, external_id=number)
            at, number = at + took, number + 1
    return t.build()


def test_a_loop_of_layers_is_one_finding_with_line_chain_bytes_and_time():
    (finding,) = outcome(timed(layers())).findings
    assert finding.subject == "add -> mul -> silu"
    assert (finding.where.file, finding.where.line, finding.where.module) == ("mlp.py", 41, "layers.*.mlp")
    eager, fused = 3 * (3 + 2 + 2) * SIZE, 3 * (2 + 1) * SIZE  # x*x reads once
    row = finding.evidence[0]
    assert row["eager_bytes"] == eager
    assert row["fused_bytes"] == fused
    assert finding.cost_bytes == eager - fused
    assert row["time_ns"] == 90_000
    # 9 ops of a fixed 2 us and 8 us of traffic: 6 ops fewer, and 4/7 of the traffic
    assert finding.cost_ns == finding.cost_ns_per_step == round(6 * 2_000 + 9 * 8_000 * 4 / 7)
    assert finding.basis == "modelled"
    assert "9 ops where 3 would do" in finding.title
    assert "@torch.compile on forward()" in finding.advice


def test_the_saving_is_never_more_than_the_exposed_time():
    trace = timed(layers())
    (finding,) = outcome(trace).findings
    assert finding.cost_ns is not None
    assert finding.cost_ns <= 90_000


def test_just_below_the_threshold_is_clean():
    saved_us = 6 * 2 + 9 * 8 * 4 / 7
    assert outcome(timed(layers(), step_us=saved_us * 50 - 1)).status == "flagged"
    assert outcome(timed(layers(), step_us=saved_us * 50 + 10)).status == "clean"
    assert outcome(TraceBuilder(op_graph=layers(ballast=20_000_000)).build()).status == "clean"


def test_ops_that_cannot_fuse_and_the_optimizer_are_clean():
    assert outcome(TraceBuilder(op_graph=layers(split=True)).build()).status == "clean"
    assert outcome(TraceBuilder(op_graph=layers(phase="optimizer")).build()).status == "clean"


def test_gradients_that_autograd_adds_up_and_fused_norms_are_clean():
    g = GraphBuilder()
    total = g.op("mm", [g.input((64, 64)), g.input((64, 64))], phase="backward")
    for _ in range(4):
        total = g.op("add", [total, g.op("mm", [total, total], phase="backward")], phase="backward")
    assert outcome(TraceBuilder(op_graph=g.graph(live=[total])).build()).status == "clean"
    n = GraphBuilder()
    x = n.input((64, 64))
    n.op("native_layer_norm", [n.op("add", [x, x])])
    assert outcome(TraceBuilder(op_graph=n.graph()).build()).status == "clean"


def test_attention_has_a_rule_of_its_own():
    g = GraphBuilder()
    q = g.input((8, 128, 32))
    s = g.op("bmm", [q, q], shape=(8, 128, 128))
    s = g.op("_softmax", [g.op("div", [s])])
    g.op("bmm", [s, q], shape=(8, 128, 32))
    assert outcome(TraceBuilder(op_graph=g.graph()).build()).status == "clean"


def test_without_times_the_bytes_are_said_and_the_basis_is_structural():
    (finding,) = outcome(TraceBuilder(op_graph=layers()).build()).findings
    assert (finding.basis, finding.cost_ns, finding.severity) == ("structural", None, "medium")
    assert "no time" in finding.title


def test_on_a_program_without_an_accelerator_the_ops_stand_for_kernels():
    t = TraceBuilder(op_graph=layers(1), recorded=frozenset({"host_ops", "steps"}))
    t.step(0, 0, 100)
    for number, name in enumerate(("mm", "add", "mul", "silu")):
        t.op(f"aten::{name}", 10 * number, 10 * number + 7)
    (finding,) = outcome(t.build()).findings
    assert finding.cost_ns == round(2 * 2_000 + 3 * 5_000 * 4 / 7)
    assert "no accelerator" in str(finding.evidence[0]["time_known_by"])


def test_a_bare_trace_is_guessed_and_says_so():
    (finding,) = outcome(timed(None)).findings
    assert finding.subject == "add -> mul -> silu"
    assert finding.basis == "modelled"
    assert "93%" in finding.title
    assert (finding.where.file, finding.where.line) == ("mlp.py", 40)
    assert finding.cost_ns == 3 * round(30_000 * 4 / 6)
    assert outcome(timed(None, step_us=3_100)).status == "clean"


def test_abstains_without_graph_and_without_shapes():
    told = outcome(timed(None, recorded=EVERYTHING - {"shapes"}))
    assert told.status == "abstained"
    assert "perfscope run" in (told.reason or "")


@pytest.mark.corpus
def test_qwen_names_the_norm_of_the_model(corpus: Path):
    from perfscope.analyzers.readers.kineto import read

    found = outcome(read(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz")).findings
    norm = next(finding for finding in found if finding.subject == "add -> rsqrt -> mul -> copy_ -> mul")
    assert norm.where.file == "transformers/models/qwen2/modeling_qwen2.py"
    assert "49 chains of 245 kernels" in norm.title
