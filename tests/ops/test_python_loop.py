"""Python loops that run small ops in many rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.graph import short_name
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.model.op_graph import GraphStorage, OpGraph
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder

RULE = load_rule("python_loop")
HOST = (EVERYTHING | {"op_graph"}) - {"device_work", "launch_links", "op_links"}
LOOP = {"file": "net.py", "line": 12, "loop_file": "net.py", "loop_line": 10}
OP_US, GAP_US = 6, 4


def timed(graph: OpGraph, *, around: str | None = None, step_us: float = 10_000) -> Trace:
    """A step that runs the graph's ops, 6 us each and 4 us between them."""
    builder = TraceBuilder(recorded=HOST)
    builder.step(1, 0, step_us)
    at = 100.0
    for op in graph.ops:
        if around is not None:
            builder.op(around, at, at + OP_US)
        builder.op(f"aten::{short_name(op)}", at, at + OP_US)
        at += OP_US + GAP_US
    return replace(builder.build(), op_graph=graph)


def looped(round_: Callable[[GraphBuilder, int], None], rounds: int = 100) -> OpGraph:
    g = GraphBuilder()
    for number in range(rounds):
        round_(g, number)
    return g.graph()


def with_storages(graph: OpGraph) -> OpGraph:
    """The graph with all tensors from before the step."""
    count = max(tensor.storage for tensor in graph.tensors) + 1
    return dataclasses.replace(graph, storages=(GraphStorage(bytes=32, born=None, died=None),) * count)


def judged(graph: OpGraph, **more: object) -> Outcome:
    return judge(RULE, timed(graph, **more))  # type: ignore[arg-type]


def of_samples(g: GraphBuilder, number: int) -> None:
    """Two ops on a sample, with the same weight in each round, and a sum."""
    if not number:
        g.weight, g.total = g.input((8,), parameter=True), g.input((8,))  # type: ignore[attr-defined]
    out = g.op("mul", [g.input((8,)), g.weight], **LOOP)  # type: ignore[attr-defined]
    g.op("add_", [g.total, g.op("tanh", [out], **LOOP)], **LOOP)  # type: ignore[attr-defined]


def test_independent_rounds_cost_their_launches() -> None:
    (finding,) = judged(looped(of_samples)).findings
    assert (finding.where.file, finding.where.line) == ("net.py", 10)
    assert "100 rounds" in finding.title
    assert finding.cost_ns == pytest.approx(300 * (OP_US + GAP_US) * 1000 * 0.99, rel=0.01)
    assert "vmap" in finding.advice


def test_what_ops_compute_is_not_saved() -> None:
    graph = looped(of_samples)
    builder = TraceBuilder(recorded=HOST)
    builder.step(1, 0, 100_000)
    for index, op in enumerate(graph.ops):
        builder.op(f"aten::{short_name(op)}", 300 * index, 300 * index + 300)
    assert judge(RULE, replace(builder.build(), op_graph=graph)).status == "clean"


def test_below_the_threshold_it_is_clean() -> None:
    assert judged(looped(of_samples), step_us=59_000).status == "flagged"
    assert judged(looped(of_samples), step_us=60_000).status == "clean"


def test_fifteen_rounds_are_no_loop() -> None:
    assert judged(looped(of_samples, 15), step_us=500).status == "clean"


def test_a_loop_over_layers_reads_other_parameters_each_time() -> None:
    def layer(g: GraphBuilder, _: int) -> None:
        g.op("tanh", [g.op("mul", [g.input((8,)), g.input((8,), parameter=True)], **LOOP)], **LOOP)

    assert judged(looped(layer)).status == "clean"


def test_a_round_that_computes_with_the_previous_one_stays_a_loop() -> None:
    def step(g: GraphBuilder, number: int) -> None:
        state = len(g.tensors) - 1 if number else g.input((8,))
        g.op("tanh", [g.op("mul", [state], **LOOP)], **LOOP)

    assert judged(looped(step)).status == "clean"


def test_a_recurrent_cell_over_time_is_one_call() -> None:
    def step(g: GraphBuilder, number: int) -> None:
        state = len(g.tensors) - 1 if number else g.input((8,))
        g.op("sigmoid", [g.op("mul", [state], **LOOP)], **LOOP)

    (finding,) = judged(looped(step), around="aten::lstm_cell").findings
    assert "nn.LSTM" in finding.advice


def test_gradients_of_single_samples_are_batched() -> None:
    def sample(g: GraphBuilder, number: int) -> None:
        out = g.op("tanh", [g.input((8,))], sequence=number, **LOOP)
        g.op("mul", [out], phase="backward", sequence=number)

    (finding,) = judged(looped(sample)).findings
    assert "torch.func.grad" in finding.advice
    assert "200 ops" in finding.detail


def test_an_average_of_the_weights_is_one_foreach_call() -> None:
    def tensor(g: GraphBuilder, _: int) -> None:
        g.op("lerp_", [g.input((8,)), g.input((8,), parameter=True)], **LOOP)

    (finding,) = judged(with_storages(looped(tensor)), step_us=5_000).findings
    assert "_foreach_lerp_" in finding.advice


def test_a_loop_of_a_package_is_not_the_programs() -> None:
    assert judged(dataclasses.replace(looped(of_samples), libraries=frozenset({"net.py"}))).status == "clean"


def test_without_loops_in_the_recording_it_abstains() -> None:
    g = GraphBuilder()
    g.op("mul", [g.input((8,))], file="net.py", line=3)
    assert judged(g.graph()).status == "abstained"
    assert judge(RULE, TraceBuilder().build()).status == "abstained"
