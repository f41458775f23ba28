"""Adapters that are multiplied out in each call, weights that are converted, and work that depends on the input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import ITEM_SIZE, GraphBuilder
from tests.rules import judged_by

ITEM_SIZE.setdefault("int8", 1)
outcome = judged_by("constant_work")


def run_of(g: GraphBuilder, times: list[float], *, step_us: float = 1000, live: list[int] | None = None) -> Trace:
    """A host trace of three steps in which the graph's ops take these times, in microseconds."""
    t = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links"}, op_graph=g.graph(live))
    names = ["::".join(op.name.split(".")[:2]) for op in g.ops if not op.view]
    for step in range(3):
        at = step * step_us
        t.step(step, at, at + step_us)
        for name, us in zip(names, times, strict=True):
            t.op(name, at, at + us)
            at += us
    return t.build()


def adapter(*, phase: str = "forward") -> GraphBuilder:
    """``F.linear(x, w + b @ a)``."""
    g = GraphBuilder()
    w, a, b = (g.input(shape, parameter=True) for shape in ((64, 64), (4, 64), (64, 4)))
    x = g.input((8, 64))
    merged = g.op("add", [w, g.op("mm", [b, a], (64, 64), line=5, phase=phase)], line=5, phase=phase)
    g.op("mm", [x, merged], (8, 64), line=6, phase=phase)
    return g


def test_an_adapter_that_is_multiplied_out_is_flagged_at_its_line():
    (finding,) = outcome(run_of(adapter(), [200, 100, 300])).findings
    assert (finding.where.file, finding.where.line) == ("model.py", 5)
    assert finding.cost_ns_per_step == 300_000
    assert "multiplied out" in finding.title
    assert "merge_and_unload" in finding.advice


def test_a_model_called_with_ones_is_not_constant():
    g = GraphBuilder()
    weight = g.input((64, 64), parameter=True)
    g.op("mm", [g.op("ones", [], (8, 64)), weight], (8, 64))
    assert outcome(run_of(g, [50, 800])).status == "clean"


def test_just_below_the_threshold_is_clean():
    assert outcome(run_of(adapter(), [60, 39, 300])).status == "clean"
    assert outcome(run_of(adapter(), [60, 41, 300])).status == "flagged"


def test_a_weight_in_int8_that_is_converted_names_the_dtype():
    g = GraphBuilder()
    q, scale, x = g.input((64, 64), "int8", parameter=True), g.input((64, 1), parameter=True), g.input((2, 64))
    weight = g.op("mul", [g.op("_to_copy", [q], dtype="float32"), scale])
    g.op("mm", [x, weight], (2, 64))
    (finding,) = outcome(run_of(g, [200, 100, 300])).findings
    assert "from int8" in finding.title


def test_factors_that_are_applied_to_the_input_are_clean():
    g = GraphBuilder()
    w, a, b = (g.input(shape, parameter=True) for shape in ((64, 64), (64, 4), (4, 64)))
    x = g.input((8, 64))
    side = g.op("mm", [g.op("mm", [x, a], (8, 4)), b], (8, 64))
    g.op("add", [g.op("mm", [x, w], (8, 64)), side])
    assert outcome(run_of(g, [200, 200, 200, 100])).status == "clean"


def test_a_backward_that_converts_a_weight_again_is_constant_and_its_products_are_not():
    """A function of one's own, as of QLoRA: its sequence number is that of its first op."""
    g = GraphBuilder()
    codes, x = g.input((64, 64), "int64", parameter=True), g.input((8, 64))
    weight = g.op("_to_copy", [codes], (64, 64), "float32", line=3, sequence=1)
    g.op("mm", [x, weight], (8, 64), line=4)
    again = g.op("_to_copy", [codes], (64, 64), "float32", line=3, phase="backward", sequence=1)
    g.op("mm", [x, again], (8, 64), line=5, phase="backward", sequence=1)
    (finding,) = outcome(run_of(g, [100, 300, 100, 300])).findings
    assert finding.cost_ns_per_step == 200_000


def test_a_weight_that_is_normalised_while_it_is_trained_is_needed_in_each_step():
    g = GraphBuilder()
    v, x = g.input((64, 64), parameter=True), g.input((8, 64))
    weight = g.op("mul", [v, g.op("linalg_vector_norm", [v], (64, 1))])
    g.op("mm", [x, weight], (8, 64))
    evaluated = run_of(g, [300, 100, 300])
    g.op("add_", [v], phase="optimizer")
    assert outcome(run_of(g, [300, 100, 300, 50])).status == "clean"
    assert outcome(evaluated).status == "flagged"


@pytest.mark.parametrize(("namespace", "status"), [("c10d", "clean"), ("aten", "flagged")])
def test_what_another_rank_sends_is_no_constant(namespace: str, status: str):
    """A buffer is made in each call and received into: in a pipeline it is the input of the stage."""
    g = GraphBuilder()
    w = g.input((64, 64), parameter=True)
    buffer = g.op("arange", [], (64, 64))
    g.op("fill_", [buffer])
    g.ops[-1] = replace(g.ops[-1], name=f"{namespace}.fill_.default")
    g.op("mm", [buffer, w], (64, 64))
    assert outcome(run_of(g, [10, 10, 500])).status == status


def test_random_numbers_are_made_anew_in_each_call():
    g = GraphBuilder()
    w, x = g.input((64, 64), parameter=True), g.input((8, 64))
    g.op("mm", [x, g.op("mul", [w, g.op("rand_like", [w])])], (8, 64))
    assert outcome(run_of(g, [300, 300, 300])).status == "clean"


@pytest.mark.parametrize("graph", [None, "no parameters"])
def test_without_a_graph_or_parameters_it_abstains(graph: str | None):
    g = GraphBuilder()
    g.op("relu", [g.input((4, 4))])
    trace = run_of(g, [100]) if graph else TraceBuilder(recorded=EVERYTHING).build()
    assert outcome(trace).status == "abstained"
