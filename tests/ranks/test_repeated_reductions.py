"""Gradients that are reduced in each pass of a step."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.ranks.build import named

RULE = load_rule("repeated_reductions")
CPU = EVERYTHING - {"device_work", "launch_links", "op_links", "runtime_calls", "waiting_calls"}


DDP = "DistributedDataParallel.forward", "torch.distributed.ddp.reducer::copy_bucket_to_grad"
FSDP = "FSDP::root_pre_forward", "FSDP::post_backward_reduce (blocks.0)"


def steps(*reduces: bool, updates: int = 1, lasts: float = 20, names: tuple[str, str] = DDP) -> Trace:
    """A step of 1,000 us with a pass of 100 us for each of ``reduces``, that all-reduces ``lasts`` us if it is true."""
    builder = TraceBuilder(recorded=CPU)
    builder.step(1, 0, 1000)
    for number, reduced in enumerate(reduces):
        at = 100.0 * number
        builder.annotation(names[0], at, at + 20)
        if reduced:
            builder.op(names[1], at + 80, at + 90)
            builder.op("gloo:all_reduce", at + 40, at + 40 + lasts, tid=2)
            builder.row(
                "collectives", start_ns=round(1000 * (at + 40)), end_ns=round(1000 * (at + 40 + lasts)),
                name=builder.code("all_reduce"), kernel=-1, ranks=builder.code("[0, 1]"), group_size=2,
            )  # fmt: skip
    for update in range(updates):
        builder.annotation("Optimizer.step#SGD.step", 900 + 20 * update, 910 + 20 * update)
    return named(builder.build(), world=2)


def test_passes_beyond_the_updates_are_the_cost() -> None:
    (finding,) = judge(RULE, steps(True, True, True, True)).findings
    assert finding.title == "gradients are reduced 4 times per optimizer step"
    assert finding.cost_ns == 60_000
    assert "no_sync()" in finding.advice


def test_passes_of_fsdp_that_reduce_are_the_cost() -> None:
    (finding,) = judge(RULE, steps(True, True, True, True, names=FSDP)).findings
    assert finding.title == "gradients are reduced and weights gathered 4 times per optimizer step"
    assert finding.cost_ns == 60_000
    assert "set_requires_gradient_sync" in finding.advice
    assert judge(RULE, steps(False, False, False, True, names=FSDP)).status == "clean"


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(steps(False, False, False, True), id="no_sync in all passes but the last"),
        pytest.param(steps(True), id="one pass"),
        pytest.param(steps(True, True, updates=2), id="two models with an optimizer each"),
    ],
)
def test_one_reduction_per_update_is_clean(trace: Trace) -> None:
    assert judge(RULE, trace).status == "clean"


def test_below_a_hundredth_of_the_steps_it_is_clean() -> None:
    assert judge(RULE, steps(True, True, lasts=10)).status == "flagged"
    assert judge(RULE, steps(True, True, lasts=9)).status == "clean"


def test_without_collectives_it_abstains() -> None:
    builder = TraceBuilder(recorded=CPU - {"collectives"})
    builder.annotation("DistributedDataParallel.forward", 0, 20)
    assert judge(RULE, builder.build()).status == "abstained"


def test_it_names_the_line_of_the_backward_pass() -> None:
    graph = GraphBuilder()
    graph.op("mul", [graph.input((8,))])
    recorded = graph.graph()
    reduction = replace(recorded.ops[0], name="c10d.allreduce_.default", file="train.py", line=18)
    trace = msgspec.structs.replace(steps(True, True), op_graph=replace(recorded, ops=(reduction,)))
    (finding,) = judge(RULE, trace).findings
    assert finding.where.label() == "train.py:18"
