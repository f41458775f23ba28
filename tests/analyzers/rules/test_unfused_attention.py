"""Written-out attention from the op graph and from a bare trace; its fused twin and a gate stay clean."""

from __future__ import annotations

import json

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.op_graph import OpGraph
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder

HEADS, LENGTH, WIDTH = 8, 128, 32


def outcome(trace: Trace) -> Outcome:
    return judge(load_rule("unfused_attention"), trace)


def attention(*, softmax: str = "_softmax", weights: bool = False, dtype: str = "float32", ballast: int = 0,
              dropout: bool = False) -> OpGraph:  # fmt: skip
    g = GraphBuilder()
    scores = (HEADS, LENGTH, LENGTH)
    q, k, v = (g.input((HEADS, LENGTH, WIDTH), dtype, parameter=weights and i > 0) for i in range(3))
    s = g.op("bmm", [q, k], shape=scores, line=10, sequence=1)
    s = g.op("div", [g.view(s, (2, HEADS // 2, LENGTH, LENGTH))], line=11, sequence=2)
    s = g.op(softmax, [s], line=12, sequence=3, module="blocks.0.attn")
    if dropout:
        s = g.op("mul", [s, g.op("bernoulli_", [g.op("zeros", [], shape=s and scores)], line=13)], line=13)
    y = g.op("bmm", [g.view(s, scores), v], shape=(HEADS, LENGTH, WIDTH), line=14, sequence=4)
    grad = g.op("bmm", [y, v], shape=scores, phase="backward", line=14, sequence=4)
    grad = g.op("mul", [grad, s], phase="backward", line=12, sequence=3)
    if ballast:
        g.op("mm", [g.input((ballast,))], shape=(1,))
    return g.graph(live=[grad])


def traced(graph: OpGraph | None, *, step_us: float = 1000, softmax: str = "aten::_softmax",
           recorded: frozenset[str] = EVERYTHING, around: str | None = None,
           matmul: str = "aten::bmm") -> Trace:  # fmt: skip
    """A step whose score ops take 5 + 40 us forward and 10 us backward."""
    t = TraceBuilder(op_graph=graph, recorded=recorded)
    t.step(0, 0, step_us)
    t.python("model.py(9): attend", 0, 90)
    if around:
        t.op(around, 0.5, 80)
    ops = [(matmul, [[8, 128, 32], [8, 32, 128]], 300), ("aten::div", [[8, 128, 128]], 5),
           (softmax, [[8, 128, 128]], 40), (matmul, [[8, 128, 128], [8, 128, 32]], 300),
           ("autograd::engine::evaluate_function: BmmBackward0", [], 0), ("aten::bmm", [[8, 128, 32]], 100),
           ("autograd::engine::evaluate_function: SoftmaxBackward0", [], 0), ("aten::mul", [[8, 128, 128]], 10),
           ("aten::mm", [[4]], 0)]  # fmt: skip
    sequences = [1, 2, 3, 4, 4, -1, 3, -1, -1]
    at = 100.0
    for number, ((name, shapes, us), sequence) in enumerate(zip(ops, sequences, strict=True)):
        node = name.startswith("autograd")
        start = 1 + 8 * number
        t.op(name, start, start + (15 if node else 6), external_id=number, sequence=sequence,
             forward_thread=-1 if sequence < 0 else 1 if node else 0, shapes=json.dumps(shapes),
             dtypes=json.dumps(["float"] * len(shapes)))  # fmt: skip
        if us:
            t.kernel(name, at, at + us, external_id=number)
            at += us
    return t.build()


def test_flagged_from_the_graph_with_bytes_time_and_line():
    (finding,) = outcome(traced(attention())).findings
    assert finding.basis == "modelled"
    assert (finding.where.line, finding.where.module) == (10, "blocks.*.attn")
    assert finding.cost_ns == finding.cost_ns_per_step == (5 + 40 + 10) * 1000
    assert finding.cost_bytes == 7 * HEADS * LENGTH * LENGTH * 4
    assert finding.evidence[0]["ops"] == "div -> _softmax -> mul"
    assert "scaled_dot_product_attention(q, k, v" in finding.advice


def test_a_graph_without_times_gives_bytes_and_no_time():
    t = TraceBuilder(op_graph=attention())
    t.op("aten::relu", 0, 1)
    (finding,) = outcome(t.build()).findings
    assert finding.basis == "structural"
    assert finding.cost_ns is None
    assert "no time" in finding.title


def test_just_below_the_threshold_is_clean():
    assert outcome(traced(attention(), step_us=5_600)).status == "clean"
    assert outcome(traced(attention(), step_us=5_400)).status == "flagged"
    assert outcome(traced(None, step_us=5_600)).status == "clean"
    assert outcome(traced(None, step_us=5_400)).status == "flagged"


def test_a_small_share_of_the_bytes_is_clean_where_no_time_is_known():
    assert outcome(TraceBuilder(op_graph=attention(ballast=200_000_000)).build()).status == "clean"


@pytest.mark.parametrize("graph", [attention(weights=True), attention(softmax="relu")])
def test_a_gate_between_weights_and_a_product_without_softmax_are_clean(graph: OpGraph):
    assert outcome(traced(graph)).status == "clean"


def test_the_fused_twin_is_clean():
    g = GraphBuilder()
    q = g.input((2, 8, 128, 32))
    g.op("_scaled_dot_product_flash_attention_for_cpu", [q, q, q], shape=(2, 8, 128, 32))
    assert outcome(TraceBuilder(op_graph=g.graph()).build()).status == "clean"
    assert outcome(traced(None, softmax="aten::relu")).status == "clean"


def test_the_dropout_mask_belongs_to_the_scores():
    (finding,) = outcome(TraceBuilder(op_graph=attention(dropout=True)).build()).findings
    assert finding.evidence[0]["ops"] == "div -> _softmax -> bernoulli_ -> mul -> mul"


def test_the_math_fallback_of_sdpa_says_why_where_it_shows():
    (finding,) = outcome(traced(attention(softmax="_safe_softmax"))).findings
    assert finding.subject == "scaled_dot_product_attention in its math fallback"
    assert "does not show why" in finding.advice
    (double,) = outcome(TraceBuilder(op_graph=attention(softmax="_safe_softmax", dtype="float64")).build()).findings
    assert "float64 has no fused kernel" in double.advice
    (dropped,) = outcome(TraceBuilder(op_graph=attention(softmax="_safe_softmax", dropout=True)).build()).findings
    assert "no dropout" in dropped.advice


def test_flagged_from_a_bare_trace_with_the_backward_and_without_the_matmuls():
    (finding,) = outcome(traced(None)).findings
    assert finding.cost_ns == 55_000
    assert finding.basis == "modelled"
    assert (finding.where.file, finding.where.line) == ("model.py", 9)
    assert finding.evidence[0]["ops"] == "div -> _softmax -> SoftmaxBackward0"
    (fallback,) = outcome(traced(None, around="aten::_scaled_dot_product_attention_math")).findings
    assert fallback.subject == "scaled_dot_product_attention in its math fallback"


def test_a_gate_with_plain_matmuls_is_clean_in_a_bare_trace():
    assert outcome(traced(None, matmul="aten::mm")).status == "clean"


def test_abstains_without_graph_and_shapes():
    told = outcome(traced(None, recorded=EVERYTHING - {"shapes"}))
    assert told.status == "abstained"
    assert "perfscope run" in (told.reason or "")
