"""Backward passes that run the same graph again."""

from __future__ import annotations

from perfscope.analyzers.engine import judge
from perfscope.analyzers.ops.recompute import EVALUATE
from perfscope.analyzers.registry import load_rule
from tests.build import EVERYTHING, TraceBuilder

RULE = load_rule("repeated_backward")
ON_HOST = EVERYTHING - {"device_work", "launch_links", "op_links"}


class Step:
    """Two steps of 1,000 us: a forward op per node, and evaluations of the nodes, 100 us each."""

    def __init__(self) -> None:
        self.builder, self.at = TraceBuilder(recorded=ON_HOST), 0.0

    def step(self, number: int, evaluations: list[int], *, builds_graphs: bool = False, lasts: float = 1000) -> Step:
        begin = self.at
        self.builder.step(number, begin, begin + lasts)
        for node in sorted(set(evaluations)):
            self.builder.op("aten::addmm", begin, begin + 10, sequence=100 * number + node, forward_thread=0)
            begin += 10
        for node in evaluations:
            identity = {"sequence": 100 * number + node, "forward_thread": 1}
            self.builder.op(f"{EVALUATE}: AddmmBackward0", begin, begin + 100, tid=2, **identity)
            graph = {"sequence": 100 * number + 50 + node, "forward_thread": 0} if builds_graphs else {}
            self.builder.op("aten::mm", begin, begin + 100, tid=2, **graph)
            begin += 100
        self.at += lasts
        return self


def test_a_graph_that_is_run_again_costs_all_runs_but_the_first() -> None:
    steps = Step().step(1, [1, 2, 1, 2, 1]).step(2, [1, 2, 1, 2, 1])
    for at in range(600, 640, 10):
        steps.builder.op(f"{EVALUATE}: torch::autograd::AccumulateGrad", at, at + 1, tid=2)
    trace = steps.builder.build()
    (finding,) = judge(RULE, trace).findings
    assert "up to 3 times" in finding.title
    assert finding.cost_ns_per_step == 300_000
    assert "backward()" in finding.advice


def test_gradients_taken_row_by_row_are_batched() -> None:
    trace = Step().step(1, [1, 1, 1, 1], builds_graphs=True).step(2, [1, 1, 1, 1], builds_graphs=True).builder.build()
    (finding,) = judge(RULE, trace).findings
    assert finding.subject == "repeated gradients"
    assert "is_grads_batched" in finding.advice


def test_gradients_of_single_losses_without_parameters_are_batched_too() -> None:
    (finding,) = judge(RULE, Step().step(1, [1, 1, 1]).step(2, [1, 1, 1]).builder.build()).findings
    assert "is_grads_batched" in finding.advice


def test_a_gradient_penalty_runs_each_kind_once() -> None:
    step = Step().step(1, [1, 2], builds_graphs=True)
    begin = 700.0
    for node in (1, 2):
        step.builder.op(f"{EVALUATE}: AddmmBackward0", begin, begin + 100, tid=2, sequence=100 + node, forward_thread=1)
        step.builder.op("aten::mm", begin, begin + 100, tid=2)
        begin += 100
    assert judge(RULE, step.builder.build()).status == "clean"


def test_one_evaluation_per_step_is_clean_whatever_the_numbers_are() -> None:
    assert judge(RULE, Step().step(1, [1, 2, 3]).step(2, [1, 2, 3]).builder.build()).status == "clean"


def test_below_the_threshold_it_is_clean() -> None:
    assert judge(RULE, Step().step(1, [1, 1], lasts=5_001).builder.build()).status == "clean"
    assert judge(RULE, Step().step(1, [1, 1], lasts=4_900).builder.build()).status == "flagged"


def test_without_sequence_numbers_it_abstains() -> None:
    builder = TraceBuilder(recorded=ON_HOST - {"autograd"})
    builder.op(f"{EVALUATE}: AddmmBackward0", 0, 100)
    assert judge(RULE, builder.build()).status == "abstained"
