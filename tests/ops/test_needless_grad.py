"""Models that are called with gradients enabled although no backward pass follows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.documents.run import ProgramFact
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder

RULE = load_rule("needless_grad")
WATCHED = ProgramFact(name="threads", value="2")


def called(*facts: ProgramFact, backward: bool = False) -> Trace:
    builder = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links", "op_links"})
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 500)
    if backward:
        builder.op("autograd::engine::evaluate_function: MmBackward0", 500, 900)
    return replace(builder.build(), program_facts=facts)


def graphs(calls: int) -> ProgramFact:
    return ProgramFact(name="unused_graph", value="Net", file="evaluate.py", line=7, count=calls)


def test_calls_whose_graphs_no_backward_pass_uses_are_flagged_at_their_line() -> None:
    (finding,) = judge(RULE, called(WATCHED, graphs(3))).findings
    assert (finding.where.file, finding.where.line, finding.severity) == ("evaluate.py", 7, "high")
    assert "torch.no_grad()" in finding.advice
    assert "`Net`" in finding.title


def test_beside_training_it_is_one_part_of_the_program() -> None:
    (finding,) = judge(RULE, called(WATCHED, graphs(16), backward=True)).findings
    assert finding.severity == "medium"


def test_two_calls_may_be_a_check_of_the_output() -> None:
    assert judge(RULE, called(WATCHED, graphs(2))).status == "clean"


@pytest.mark.parametrize(("backward", "status"), [(False, "flagged"), (True, "clean")])
def test_one_call_suffices_if_its_graph_is_in_the_step_and_never_run_backward(backward: bool, status: str) -> None:
    g = GraphBuilder()
    out = g.op("mul", [g.input((4, 8))], sequence=7, file="evaluate.py", line=7)
    if backward:
        g.op("mul", [out], phase="backward", sequence=7)
    assert judge(RULE, replace(called(WATCHED, graphs(1)), op_graph=g.graph())).status == status


def test_a_run_without_such_calls_is_clean() -> None:
    assert judge(RULE, called(WATCHED)).status == "clean"


def test_a_trace_of_another_tool_has_no_samples_of_calls() -> None:
    outcome = judge(RULE, called())
    assert outcome.status == "abstained"
    assert "perfscope run" in (outcome.reason or "")


def test_the_finding_is_part_of_an_analysis() -> None:
    assert analyze(called(WATCHED, graphs(5)))["needless_grad"].status == "flagged"
