"""Functions that torch.compile compiles again in the steps: for which guard, made at which line, and at what time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.analyzers.compile_log import CompileLog, Phase, Place
from perfscope.analyzers.engine import judge
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import RECORDED
from tests.analyzers.broken import BEHIND, CPU, MODEL, SECOND, compilation, graph_break, log_alone, recompiled, with_log
from tests.build import TraceBuilder

RULE = load_rule("recompilation")
RATES = ["rate == 0.1", "rate == 0.09", "rate == 0.08"]
MADE = Place(file="/home/user/stages.py", line=79, function="dropping")


def at(seconds: float) -> int:
    return round((BEHIND + seconds) * SECOND)


def test_a_number_that_changes_is_named_with_its_values_and_line():
    (finding,) = judge(RULE, log_alone(recompiled(RATES, guard_place=MADE))).findings
    assert (finding.subject, finding.basis) == ("recompilation of forward", "measured")
    assert (finding.cost_ns, finding.cost_ns_per_step) == (3 * SECOND, 3 * SECOND // 4)
    assert (finding.where.file, finding.where.line) == (MADE.file, MADE.line)
    assert "3 more times in 3 steps" in finding.title
    assert "the number rate changes (0.1, 0.09, 0.08): guard rate == 0.1" in finding.title
    assert "torch.tensor(rate" in finding.advice
    assert [row["guard_made_at"] for row in finding.evidence] == ["/home/user/stages.py:79"] * 3


def test_the_end_of_a_path_is_completed_from_the_log():
    log = recompiled(RATES, guard_place=replace(MADE, file="er/stages.py"))
    line = replace(MADE, line=80)
    (finding,) = judge(RULE, log_alone(replace(log, breaks=(graph_break("9/0", line, stack=(line,)),)))).findings
    assert (finding.where.file, finding.where.line) == (MADE.file, 79)


def test_without_a_line_of_the_guard_it_is_the_functions():
    torchs = Place(file="/venv/lib/python3.12/site-packages/torch/nn/functional.py", line=1500, function="dropout")
    for place in (None, torchs):
        (finding,) = judge(RULE, log_alone(recompiled(RATES, guard_place=place))).findings
        assert (finding.where.file, finding.where.line) == (MODEL.file, MODEL.line)


def test_the_threshold_is_two_steps():
    assert judge(RULE, log_alone(recompiled(RATES[:2]))).status == "flagged"
    assert judge(RULE, log_alone(recompiled(RATES[:1]))).status == "clean"
    assert judge(RULE, log_alone(recompiled(RATES, every=3))).status == "clean"


def test_compiling_in_the_first_step_is_clean():
    assert judge(RULE, log_alone(recompiled(RATES, every=9, first=0))).status == "clean"


def test_functions_compiled_once_each_and_after_a_reset_are_clean():
    once = tuple(compilation(f"{number}/0", 10.0 * number) for number in range(4))
    assert judge(RULE, log_alone(CompileLog(path="log", compiles=once))).status == "clean"
    anew = tuple(compilation("0/0", 10.0 * number) for number in range(4))
    assert judge(RULE, log_alone(CompileLog(path="log", compiles=anew))).status == "clean"


def test_phases_of_the_forward_and_the_backward_are_counted_and_their_moments_once():
    log = replace(recompiled(RATES[:2]), phases=tuple(
        Phase(name=name, start_ns=at(start), end_ns=at(end), compile_id=compile_id)
        for name, start, end, compile_id in (
            ("dynamo", 10.0, 11.0, "0/1"), ("inductor_compile", 10.2, 10.9, "0/1"),
            ("entire_backward_compile", 12.0, 12.5, "0/1"), ("dynamo", 20.0, 21.0, "0/2"),
            ("dynamo", 0.0, 5.0, "0/0"),
        )
    ))  # fmt: skip
    (finding,) = judge(RULE, log_alone(log)).findings
    assert finding.cost_ns == round(2.5 * SECOND)


def test_steps_that_were_timed_are_what_it_is_a_share_of():
    builder = TraceBuilder(recorded=CPU, step_times_us=(1e7,) * 1000)
    (finding,) = judge(RULE, with_log(builder, recompiled(RATES))).findings
    assert (finding.cost_ns_per_step, finding.severity) == (3 * SECOND // 1000, "low")


@pytest.mark.parametrize(
    ("guard", "advice"),
    [
        ("___check_obj_id(L['fn'], 140439264606080)", "Make fn once, outside the loop"),
        ("___check_type_id(L['x'], 9443104)", "Pass the same type each time as x"),
        ("GLOBAL_STATE changed: grad_mode", "one gradient mode"),
        ("GLOBAL_STATE changed: autocast_state", "autocast, default dtype"),
        ("L['self'].training == True", "model.train() and model.eval()"),
        ("tensor 'x' requires_grad mismatch. expected requires_grad=0", "Pass x with one layout"),
        ("len(L['items']) == 3", "Pass items with the same length"),
        ("tensor 'x' size mismatch at index 0. expected 4, actual 5", "mark_dynamic(x, 0)"),
        ("BACKEND_MATCH failure: different backend callables", "TORCH_LOGS"),
    ],
)
def test_advice_fits_the_guard(guard: str, advice: str):
    (finding,) = judge(RULE, log_alone(recompiled([guard, guard]))).findings
    assert advice in finding.advice


def test_a_log_that_says_no_reason_is_still_judged():
    log = replace(recompiled(RATES), recompiles=())
    (finding,) = judge(RULE, log_alone(log)).findings
    assert "the log does not say why" in finding.title


def test_without_the_log_it_abstains():
    builder = TraceBuilder(recorded=CPU)
    builder.op("Torch-Compiled Region: 0/0", 0, 10)
    without = judge(RULE, builder.build())
    assert (without.status, without.reason) == ("abstained", f"not recorded: {RECORDED['compile_log']}")
    assert judge(RULE, log_alone(CompileLog(path="log"))).reason == "nothing was compiled"
