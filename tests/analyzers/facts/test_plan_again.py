"""Frames of a plan that are compiled again, by what their guards are about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.finding import AbstainError, Finding
from perfscope.analyzers.load import load
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.torch_plan import HeldPlan
from perfscope.analyzers.trace import Trace
from perfscope.profiler.aot.torch_plan_file import PlanPlace, PlanRecompile

RECORDED = Path(__file__).resolve().parents[3] / "fixtures" / "plans-h100"


def compiled_again(*reasons: str, name: str = "attention-naive-compiled") -> Trace:
    """A recorded plan with these recompilations of one frame."""
    (trace,) = load(RECORDED / name)
    (held,) = trace.torch_plans
    rows = tuple(
        PlanRecompile(
            compile_id=f"0/{number}",
            function="torch_dynamo_resume_in_loss_at_9",
            place=PlanPlace(file="train.py", line=9, function="loss"),
            reasons=(reason,) if reason else (),
        )
        for number, reason in enumerate(reasons, 1)
    )
    plan = replace(held.plan, recompiles=rows)
    trace.torch_plans = (HeldPlan(plan=plan, eager=held.eager, outside=held.outside),)
    return trace


def found(trace: Trace, rule: str) -> list[Finding]:
    check = load_rule(rule).plan
    assert check is not None
    return list(check(trace))


def size(of: int, to: int) -> str:
    return f"0/0: tensor 'x' size mismatch at index 1. expected {of}, actual {to}"


def test_sizes_are_churn_and_not_recompilation() -> None:
    trace = compiled_again(size(64, 96), size(64, 112))
    assert found(trace, "recompilation") == []
    (finding,) = found(trace, "dynamic_shape_churn")
    assert "(64, 96, 112)" in finding.title
    assert "mark_dynamic(x, 1)" in finding.advice
    assert (finding.where.file, finding.where.line) == ("train.py", 9)
    assert finding.cost_ns is None


@pytest.mark.parametrize(
    ("reason", "about"),
    [
        ("0/0: rate == 3", "the number rate"),
        ("0/1: ___check_obj_id(self.act, 77)", "self.act"),
        ("", "does not say why"),
    ],
)
def test_another_guard_is_recompilation(reason: str, about: str) -> None:
    trace = compiled_again(reason, reason)
    assert found(trace, "dynamic_shape_churn") == []
    (finding,) = found(trace, "recompilation")
    assert about in finding.title
    assert finding.subject == "recompilation of loss"


def test_one_is_how_a_size_becomes_dynamic() -> None:
    for rule in ("recompilation", "dynamic_shape_churn"):
        assert found(compiled_again(size(64, 96)), rule) == []


def test_a_program_that_compiles_nothing_is_not_judged() -> None:
    with pytest.raises(AbstainError, match="compiles nothing itself"):
        found(compiled_again(size(1, 2), size(1, 3), name="attention-naive"), "recompilation")
