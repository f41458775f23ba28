"""Gradients of weights that no optimizer updates: adapters over weights that still need gradients, and near misses."""

from __future__ import annotations

from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.rules import judged_by

outcome = judged_by("frozen_gradients")


def trained(*, update_base: bool = False, wanted: bool = True, optimizer: bool = True) -> GraphBuilder:
    """``base(x) + up(x)``, a backward pass, and an optimizer that has ``up`` alone or both.

    ``wanted``: whether the weight of ``base`` needs a gradient.
    """
    g = GraphBuilder()
    base, up = g.input((64, 32), parameter=True), g.input((16, 32), parameter=True)
    x, held = g.input((8, 32)), g.input((64, 32))
    y = g.op("mm", [x, base], (8, 64), line=5, sequence=1, module="base")
    z = g.op("mm", [y, up], (8, 16), line=6, sequence=2)
    g.op("mm", [z, up], (8, 64), phase="backward", sequence=2)  # towards the input of the second layer
    to_up = g.op("mm", [z, y], (16, 32), phase="backward", sequence=2)
    if wanted:
        to_base = g.op("mm", [y, x], (64, 32), phase="backward", line=5, sequence=1, module="base")
        g.op("add_", [held, to_base], phase="backward")
    if optimizer:
        g.op("_fused_adamw_", [up, to_up], phase="optimizer")
        if update_base:
            g.op("_fused_adamw_", [base, held], phase="optimizer")
    return g


def run_of(g: GraphBuilder, times: list[float]) -> Trace:
    """Three steps of 1 ms on the host in which the graph's ops take these times, in microseconds."""
    t = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links"}, op_graph=g.graph())
    names = ["::".join(op.name.split(".")[:2]) for op in g.ops]
    for step in range(3):
        at = step * 1000.0
        t.step(step, at, at + 1000)
        for name, us in zip(names, times, strict=True):
            t.op(name, at, at + us)
            at += us
    return t.build()


def test_the_gradient_of_a_weight_without_an_optimizer_is_flagged_at_its_layer() -> None:
    (finding,) = outcome(run_of(trained(), [200, 100, 100, 50, 150, 20, 30])).findings
    assert (finding.where.file, finding.where.line, finding.where.module) == ("model.py", 5, "base")
    assert finding.cost_ns_per_step == 170_000, "the product and its sum"
    assert "requires_grad_(False)" in finding.advice


def test_just_below_the_threshold_it_is_clean() -> None:
    assert outcome(run_of(trained(), [200, 100, 100, 50, 29, 20, 30])).status == "clean"
    assert outcome(run_of(trained(), [200, 100, 100, 50, 31, 20, 30])).status == "flagged"


def test_weights_that_are_updated_or_frozen_are_clean() -> None:
    assert outcome(run_of(trained(update_base=True), [200, 100, 100, 50, 150, 20, 30, 30])).status == "clean"
    assert outcome(run_of(trained(wanted=False), [200, 100, 100, 50, 30])).status == "clean"


def test_a_step_without_an_optimizer_is_not_judged() -> None:
    found = outcome(run_of(trained(optimizer=False), [200, 100, 100, 50, 150, 20]))
    assert found.status == "abstained"
    assert "optimizer" in (found.reason or "")
