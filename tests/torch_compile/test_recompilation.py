from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.engine import judge
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.torch_compile.guards import parse_guard
from perfscope.model.compile_log import CodeLine, CompileLog, GraphBreak, Phase, ProgramLine, Recompile
from perfscope.model.finding import AbstainError, Finding, Once, Outcome
from perfscope.model.jax_log import CompileEvent, CompileKind
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.trace import RECORDED, Source, Trace
from tests.build import EVERYTHING, TraceBuilder, replace
from tests.torch_compile.logs import (
    AFTER_TRACE_S,
    CPU,
    MODEL_FRAME,
    SECOND,
    compilation,
    graph_break,
    log_alone,
    recompiled,
    with_log,
)

FORMS = [
    ("tensor 'x' size mismatch at index 0. expected 4, actual 5", ("size", "x", 0, "4", "5")),
    ("tensor 'L['x']' size mismatch at index 1. expected 32, actual 33", ("size", "x", 1, "32", "33")),
    ("tensor 'x' stride mismatch at index 0. expected 8, actual 1", ("tensor", "x", 0, "8", "1")),
    ("tensor 'x' requires_grad mismatch. expected requires_grad=0", ("tensor", "x", None, "requires_grad=0", None)),
    ("tensor 'x' dtype mismatch. expected Float, actual Half", ("tensor", "x", None, "Float", "Half")),
    ("L['x'].size()[0] == 8", ("size", "x", 0, "8", None)),
    ("8 == x.size()[1]", ("size", "x", 1, "8", None)),
    ("2 <= L['x'].size()[0]", ("size", "x", 0, None, None)),
    ("rate == 0.09000000000000001", ("number", "rate", None, "0.09000000000000001", None)),
    ("L['rate'] == -1e-05", ("number", "rate", None, "-1e-05", None)),
    ("G['i'] == 0", ("number", "i", None, "0", None)),
    ("L['self'].k == 3", ("number", "self.k", None, "3", None)),
    ("L['self'].training == True", ("training", "self.training", None, "True", None)),
    ("___stack2 == 4.49", ("number", "___stack2", None, "4.49", None)),
    ("GLOBAL_STATE changed: grad_mode ", ("grad_mode", "grad_mode", None, None, None)),
    ("GLOBAL_STATE changed: autocast_state ", ("global_state", "autocast_state", None, None, None)),
    ("___check_global_state()", ("global_state", None, None, None, None)),
    ("___check_obj_id(L['fn'], 140439264606080)", ("identity", "fn", None, None, None)),
    ("___check_obj_id(fn, 140439264606080)", ("identity", "fn", None, None, None)),
    ("___check_type_id(L['x'], 9443104)", ("type", "x", None, None, None)),
    ("len(L['xs']) == 3", ("container", "xs", None, None, None)),
    ("mode == '...'", ("other", "mode", None, "'...'", None)),
    ("BACKEND_MATCH failure: torch.compile detected different backend callables.", ("other", None, None, None, None)),
]


@pytest.mark.parametrize(("text", "parts"), FORMS)
def test_form(text: str, parts: tuple[object, ...]) -> None:
    guard = parse_guard(text)
    assert (guard.kind, guard.source, guard.dimension, guard.expected, guard.actual) == parts
    assert guard.text == text


def test_guards_that_differ_in_values_only_have_one_key() -> None:
    first, second = (parse_guard(f"tensor 'x' size mismatch at index 0. expected {n}, actual 9") for n in (4, 5))
    assert first.key == second.key
    assert first.key != parse_guard("tensor 'x' size mismatch at index 1. expected 4, actual 9").key


@given(st.text(max_size=500))
def test_any_text_is_some_guard(text: str) -> None:
    assert parse_guard(text).text == text


RECORDED_PLANS = Path(__file__).resolve().parents[2] / "fixtures" / "plans-h100"


def compiled_again(*reasons: str, name: str = "attention-naive-compiled") -> Trace:
    """A recorded plan with these recompilations of one frame."""
    (trace,) = load_all(RECORDED_PLANS / name)
    (held,) = trace.torch_plans
    rows = tuple(
        Recompile(
            compile_id=f"0/{number}",
            function="torch_dynamo_resume_in_loss_at_9",
            place=ProgramLine(file="train.py", line=9, function="loss"),
            reasons=(reason,) if reason else (),
        )
        for number, reason in enumerate(reasons, 1)
    )
    plan = replace(held.plan, recompiles=rows)
    return replace(trace, torch_plans=(LoadedPlan(plan=plan, eager=held.eager, outside=held.outside),))


def plan_findings(trace: Trace, rule: str) -> list[Finding]:
    check = load_rule(rule).plan
    assert check is not None
    return list(check(trace))


def size(of: int, to: int) -> str:
    return f"0/0: tensor 'x' size mismatch at index 1. expected {of}, actual {to}"


def test_sizes_are_churn_and_not_recompilation() -> None:
    trace = compiled_again(size(64, 96), size(64, 112))
    assert plan_findings(trace, "recompilation") == []
    (finding,) = plan_findings(trace, "dynamic_shape_churn")
    assert "(64, 96, 112)" in finding.detail
    assert "mark_dynamic(x, 1)" in finding.advice
    assert (finding.where.file, finding.where.line) == ("train.py", 9)
    assert finding.cost_ns is None


@pytest.mark.parametrize(
    ("reason", "about"),
    [
        ("0/0: rate == 3", "the number rate"),
        ("0/1: ___check_obj_id(self.act, 77)", "self.act"),
        ("", "torch gives no reason"),
    ],
)
def test_another_guard_is_recompilation(reason: str, about: str) -> None:
    trace = compiled_again(reason, reason)
    assert plan_findings(trace, "dynamic_shape_churn") == []
    (finding,) = plan_findings(trace, "recompilation")
    assert about in finding.detail
    assert finding.subject == "recompilation of loss"


def test_one_is_how_a_size_becomes_dynamic() -> None:
    for rule in ("recompilation", "dynamic_shape_churn"):
        assert plan_findings(compiled_again(size(64, 96)), rule) == []


def test_a_program_that_compiles_nothing_is_not_judged() -> None:
    with pytest.raises(AbstainError, match="compiles nothing itself"):
        plan_findings(compiled_again(size(1, 2), size(1, 3), name="attention-naive"), "recompilation")


CHURN_RULE = load_rule("dynamic_shape_churn")


def sizes(*lengths: int, tensor: str = "tokens_BL", dimension: int = 1) -> list[str]:
    """torch's text if a length follows another."""
    return [
        f"tensor '{tensor}' size mismatch at index {dimension}. expected {before}, actual {after}"
        for before, after in pairwise(lengths)
    ]


def test_every_new_size_is_compiled_anew():
    (finding,) = judge(CHURN_RULE, log_alone(recompiled(sizes(32, 31, 30, 29)))).findings
    assert (finding.cost_ns, finding.cost_ns_per_step) == (3 * SECOND, 3 * SECOND // 4)
    assert (finding.where.file, finding.where.line, finding.basis) == (MODEL_FRAME.file, MODEL_FRAME.line, "measured")
    assert finding.subject == "forward compiled for each size of tokens_BL in dimension 1"
    assert "4 sizes of tokens_BL.size()[1]" in finding.title
    assert "29, 30, 31, 32" in finding.detail
    assert "mark_dynamic(tokens_BL, 1, min=29, max=32)" in finding.advice
    assert [(row["step"], row["spent_ns"]) for row in finding.evidence] == [(1, SECOND), (2, SECOND), (3, SECOND)]


def test_the_limit_of_compilations_is_said_and_its_size_counted():
    log = recompiled(sizes(32, 31, 30, 29))
    given_up = replace(log.compiles[-1], has_code=False, traced_graphs=0)
    skip = GraphBreak(compile_id="0/3", reason="Dynamo recompile limit exceeded", doc_id="gb0039", skipped_frame=True)
    (finding,) = judge(
        CHURN_RULE, log_alone(replace(log, compiles=(*log.compiles[:-1], given_up), breaks=(skip,)))
    ).findings
    assert "limit of compilations is reached" in finding.detail
    assert "4 sizes" in finding.title
    assert finding.cost_ns == 2 * SECOND


def test_the_threshold_is_three_sizes_in_two_steps():
    assert judge(CHURN_RULE, log_alone(recompiled(sizes(32, 31, 30)))).status == "flagged"
    assert judge(CHURN_RULE, log_alone(recompiled(sizes(32, 31)))).status == "clean"
    assert judge(CHURN_RULE, log_alone(recompiled(sizes(32, 31, 32)))).status == "clean"
    assert judge(CHURN_RULE, log_alone(recompiled(sizes(32, 31, 30), every=2))).status == "clean"


def test_sizes_compiled_in_the_first_step_are_warm_up():
    assert judge(CHURN_RULE, log_alone(recompiled(sizes(32, 31, 30, 29), every=9, first=0))).status == "clean"


def test_each_frame_is_in_one_of_the_two_rules():
    other = load_rule("recompilation")
    churning, mixed = log_alone(recompiled(sizes(8, 7, 6))), ["rate == 0.1", "rate == 0.2"]
    assert judge(other, churning).status == "clean"
    few = log_alone(recompiled([*mixed, *sizes(8, 7, 6)]))  # half
    assert (judge(CHURN_RULE, few).status, judge(other, few).status) == ("flagged", "clean")
    fewer = log_alone(recompiled([*mixed, "rate == 0.3", *sizes(8, 7, 6)]))
    assert (judge(CHURN_RULE, fewer).status, judge(other, fewer).status) == ("clean", "flagged")


def test_without_steps_every_compilation_counts():
    log = replace(recompiled(sizes(32, 31, 30, 29)), steps=())
    (finding,) = judge(CHURN_RULE, log_alone(log)).findings
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.severity) == (3 * SECOND, None, "high")


def test_older_guards_name_local_and_value_otherwise():
    guards = [f"L['x'].size()[0] == {size}" for size in (4, 5, 6)]
    (finding,) = judge(CHURN_RULE, log_alone(recompiled(guards))).findings
    assert "3 sizes of x.size()[0]" in finding.title
    assert "4, 5, 6" in finding.detail


def test_without_the_log_or_a_compilation_it_abstains():
    without = judge(CHURN_RULE, TraceBuilder().build())
    assert (without.status, without.reason) == ("abstained", f"not recorded: {RECORDED['compile_log']}")
    assert judge(CHURN_RULE, log_alone(CompileLog(path="log"))).reason == "nothing was compiled"


RULE = load_rule("recompilation")
MS = 1_000_000


def event(kind: CompileKind, end_ms: int, lasts_ms: int | None, step: int | None, function: str = "jit(step)",
          reason: str | None = None) -> CompileEvent:  # fmt: skip
    return CompileEvent(
        kind=kind, end_ns=end_ms * MS, duration_ns=None if lasts_ms is None else lasts_ms * MS, step=step,
        function=function, file="train.py", line=131, reason=reason,
    )  # fmt: skip


def compiled(at_ms: int, step: int | None, function: str = "step") -> list[CompileEvent]:
    """Traced for 10 ms, of which 4 inside another trace; lowered for 5, compiled for 20."""
    return [
        event("retrace", at_ms, None, step, function, "different input types: * at x, now f32[5] and before f32[4]"),
        event("trace", at_ms + 8, 4, step, function),
        event("trace", at_ms + 10, 10, step, function),
        event("lower", at_ms + 15, 5, step, f"jit({function})"),
        event("compile", at_ms + 35, 20, step, f"jit({function})"),
    ]


def _judge(*events: list[CompileEvent], step_times_ns: tuple[int, ...] = (), log: CompileLog | None = None) -> Outcome:
    trace = Trace(
        source=Source(path="run", format="run", rank=None, events_read=0, events_unplaced=0),
        strings=[], rows={}, recorded=frozenset({"compile_events"}), step_times_ns=step_times_ns,
        compile_events=tuple(one for part in events for one in part), compile_log=log,
    )  # fmt: skip
    return judge(RULE, trace)


def test_a_function_compiled_in_every_step_is_flagged_with_reason_and_time():
    outcome = _judge(*(compiled(100 * step, step) for step in range(4)), step_times_ns=(100 * MS,) * 4)
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "recompilation of step", "measured")
    assert finding.cost_ns == 3 * 35 * MS  # the nested trace does not count again; step 0 had to compile
    assert finding.cost_ns_per_step == 3 * 35 * MS // 4
    assert (finding.where.label(), finding.severity) == ("train.py:131", "high")
    assert finding.title == "step is compiled 3 more times: the shape of x changes"
    assert [(row["step"], row["cause"], row["spent_ns"]) for row in finding.evidence] == [
        (step, "shape", 35 * MS) for step in (1, 2, 3)
    ]


def retraced(at_ms: int, reason: str, lasts_ms: int = 200, step: int | None = None) -> list[CompileEvent]:
    """A function of the program that jax explains, compiled for ``lasts_ms``."""
    why = replace(event("retrace", at_ms, None, step, "step", reason), defined_file="train.py", defined_line=7)
    return [
        why,
        event("trace", at_ms + 10, 10, step, "step"),
        event("compile", at_ms + 10 + lasts_ms, lasts_ms - 10, step),
    ]


WEAK = (
    "different input types: * at sched['avg'], now f32[]{weak_type=False} and before f32[]{weak_type=True}"
    "https://docs.jax.dev/en/latest/type_promotion.html#weak-types"
)


def test_one_more_compilation_for_a_weak_type_is_flagged_with_the_leaf():
    (finding,) = _judge(retraced(0, ""), retraced(1000, WEAK)).findings
    assert finding.title == "step is compiled once more: sched['avg'] is weakly typed at first"
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.where.line) == (200 * MS, None, 131)
    assert "sched['avg']" in finding.advice


def test_one_more_compilation_below_a_twentieth_of_a_second_is_clean():
    assert _judge(retraced(0, ""), retraced(1000, WEAK, 49)).status == "clean"
    assert _judge(retraced(0, ""), retraced(1000, WEAK, 50)).status == "flagged"


def test_one_more_shape_or_the_same_slip_at_another_line_is_clean():
    shape = "different input types: * at x, now f32[7,64] and before f32[32,64]"
    assert _judge(retraced(0, ""), retraced(1000, shape)).status == "clean"
    elsewhere = [replace(one, line=200) for one in retraced(1000, WEAK)]
    assert _judge(retraced(0, ""), elsewhere).status == "clean"


@pytest.mark.parametrize(
    ("reason", "title"),
    [
        ("different input types: * at x, now i32[] and before f32[]", "the dtype of x changes"),
        ("different input types: * at x, now f32[8]({}) and before f32[8]({Auto: ('d',)})", "the sharding of x"),
        ("Tracing context doesn't match, e.g. due to config or context manager. * jax_enable_x64 differs: now True and "
         "before False", "is compiled once more"),
    ],
)  # fmt: skip
def test_slips_are_told_apart(reason: str, title: str) -> None:
    (finding,) = _judge(retraced(0, ""), retraced(1000, reason)).findings
    assert title in finding.title


def test_an_object_that_is_made_anew_in_each_call_is_made_once() -> None:
    made = (
        "different input pytree: * at input path [0][0], now <class 'jax._src.tree_util.Static'> with pytree metadata "
        "Static(val=<__main__.Model object at 0x7f0{0}>) and before <class 'jax._src.tree_util.Static'> with pytree "
        "metadata Static(val=<__main__.Model object at 0x7f0{1}>), so the pytree node metadata does not match"
    )
    events = [retraced(1000 * n, made.format(n, n - 1) if n else "", step=n) for n in range(4)]
    (finding,) = _judge(*events, step_times_ns=(1000 * MS,) * 4).findings
    assert "Make argument 0 once" in finding.advice
    assert "a new __main__.Model" in finding.detail
    assert "0x" not in finding.detail


def test_settings_of_a_module_that_jax_imports_in_the_first_call_are_no_slip_of_the_program():
    grown = (
        "Tracing context doesn't match, e.g. due to config or context manager. "
        "* number of tracing context values differs: now 54 and before 53"
    )
    assert _judge(retraced(0, ""), retraced(1000, grown)).status == "clean"


def test_compiled_again_without_a_trace_is_another_placement():
    placed = [event("compile", 2000, 300, None)]
    (finding,) = _judge(retraced(0, ""), placed).findings
    assert "placed differently" in finding.title


def anew(step: int, name: str = "step") -> list[CompileEvent]:
    text = "but seen another function defined on the same line; maybe the function is being re-defined repeatedly"
    return [replace(one, function=name) for one in retraced(1000 * step, text, step=step)]


def test_a_function_that_is_jitted_in_the_loop_is_told_to_hoist_the_jit():
    (finding,) = _judge(*(anew(step) for step in range(4))).findings
    assert finding.title.startswith("step is jitted anew and compiled 3 more times")
    assert finding.advice.startswith("Call jax.jit once, before the loop")
    assert "shape" not in finding.advice


def test_functions_that_a_factory_made_are_first_compiled_at_their_lines():
    def called_at(step: int, line: int) -> list[CompileEvent]:
        return [replace(one, line=line) for one in anew(step)]

    assert _judge(*(called_at(step, 131 + step) for step in range(4))).status == "clean"
    (finding,) = _judge(*(called_at(step, 131 + step % 2) for step in range(4))).findings
    assert finding.title.startswith("step is jitted anew and compiled 2 more times")


def test_a_cache_that_grows_is_told_to_be_allocated_once():
    grown = [
        retraced(1000 * step, f"different input types: * at cache, now f32[{step + 1},64] and before f32[1,64]",
                 step=step)
        for step in range(6)
    ]  # fmt: skip
    (finding,) = _judge(*grown).findings
    assert "cache grows" in finding.title
    assert finding.advice.startswith("Allocate cache once")
    back = retraced(9000, "different input types: * at cache, now f32[3,64] and before f32[1,64]", step=9)
    assert "grows" not in _judge(*grown, back).findings[0].title


def test_the_threshold_is_two_steps_for_jax():
    first = compiled(0, 0)
    assert _judge(first, compiled(500, 5), compiled(900, 9)).status == "flagged"
    assert _judge(first, compiled(500, 5)).status == "clean"


def test_compiling_before_the_first_step_or_another_function_in_each_is_clean():
    assert _judge(compiled(0, None), compiled(100, None), compiled(200, None), compiled(300, 0)).status == "clean"
    assert _judge(*(compiled(100 * step, step, f"f{step}") for step in range(5))).status == "clean"


def test_retracing_what_is_traced_inside_another_function_compiles_nothing_and_is_clean():
    inner = [event("retrace", 100 * step, None, step, "_layer", "but seen another function") for step in range(5)]
    assert _judge(compiled(0, 0), inner).status == "clean"


def test_few_recompilations_in_a_long_run_are_spread_over_all_its_steps():
    (finding,) = _judge(compiled(0, 0), compiled(100, 1), compiled(200, 2), step_times_ns=(100 * MS,) * 1000).findings
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.severity) == (2 * 35 * MS, None, "low")
    assert finding.once == Once(times=2, steps=1000, last_step=2)
    assert "Each takes 35.0 ms" in finding.detail
    assert finding.detail.endswith("It is paid in 2 of 1,000 steps. Steps after step 2 do not pay.")


def test_compiling_in_most_steps_is_a_cost_of_each_step():
    again = [compiled(100 * number, number) for number in range(1, 10)]
    (finding,) = _judge(compiled(0, 0), *again, step_times_ns=(100 * MS,) * 10).findings
    assert (finding.cost_ns_per_step, finding.once) == (9 * 35 * MS // 10, None)
    assert "pays" not in finding.detail


def test_torch_that_compiled_nothing_beside_jax_changes_nothing():
    first = compiled(0, 0)
    outcome = _judge(first, compiled(500, 5), compiled(900, 9), log=CompileLog(path="run"))
    assert outcome.status == "flagged"
    assert _judge(first, log=CompileLog(path="run")).status == "clean"


def test_without_the_jax_log_it_abstains():
    without = judge(RULE, TraceBuilder(recorded=EVERYTHING - {"compile_events", "hlo"}).build())
    assert (without.status, without.reason) == ("abstained", f"not recorded: {RECORDED['hlo']}")
    programs = judge(RULE, TraceBuilder(recorded=frozenset({"hlo"})).build())
    assert (programs.status, programs.reason) == ("abstained", f"not recorded: {RECORDED['compile_events']}")


RATES = ["rate == 0.1", "rate == 0.09", "rate == 0.08"]
MADE = CodeLine(file="/home/user/stages.py", line=79, function="dropping")


def after_trace_ns(seconds: float) -> int:
    return round((AFTER_TRACE_S + seconds) * SECOND)


def test_a_number_that_changes_is_named_with_its_values_and_line():
    (finding,) = judge(RULE, log_alone(recompiled(RATES, guard_place=MADE))).findings
    assert (finding.subject, finding.basis) == ("recompilation of forward", "measured")
    assert (finding.cost_ns, finding.cost_ns_per_step) == (3 * SECOND, 3 * SECOND // 4)
    assert (finding.where.file, finding.where.line) == (MADE.file, MADE.line)
    assert "3 more times" in finding.title
    assert "number rate changes (0.1, 0.09, 0.08): guard rate == 0.1" in finding.detail
    assert "torch.tensor(rate" in finding.advice
    assert [row["guard_made_at"] for row in finding.evidence] == ["/home/user/stages.py:79"] * 3


def test_the_end_of_a_path_is_completed_from_the_log():
    log = recompiled(RATES, guard_place=replace(MADE, file="er/stages.py"))
    line = replace(MADE, line=80)
    (finding,) = judge(RULE, log_alone(replace(log, breaks=(graph_break("9/0", line, stack=(line,)),)))).findings
    assert (finding.where.file, finding.where.line) == (MADE.file, 79)


def test_without_a_line_of_the_guard_it_is_the_functions():
    torchs = CodeLine(file="/venv/lib/python3.12/site-packages/torch/nn/functional.py", line=1500, function="dropout")
    for place in (None, torchs):
        (finding,) = judge(RULE, log_alone(recompiled(RATES, guard_place=place))).findings
        assert (finding.where.file, finding.where.line) == (MODEL_FRAME.file, MODEL_FRAME.line)


def test_the_threshold_is_two_steps_for_torch():
    assert judge(RULE, log_alone(recompiled(RATES[:2]))).status == "flagged"
    assert judge(RULE, log_alone(recompiled(RATES[:1]))).status == "clean"
    assert judge(RULE, log_alone(recompiled(RATES, every=3))).status == "clean"


def test_a_single_recompilation_for_a_number_counts_from_a_tenth_of_all_steps():
    log = recompiled(["self.param_groups[0]['lr'] == 0.001"])  # a second
    short = replace(log_alone(log), step_times_ns=(SECOND // 2,) * 20)
    (finding,) = judge(RULE, short).findings
    assert finding.title == "forward is compiled once more"
    assert "lr=torch.tensor(0.001)" in finding.advice
    assert judge(RULE, replace(short, step_times_ns=(SECOND // 2,) * 21)).status == "clean"
    sized = recompiled(["tensor 'x' size mismatch at index 0. expected 4, actual 5"])
    assert judge(RULE, replace(log_alone(sized), step_times_ns=(SECOND // 2,) * 20)).status == "clean"


def test_a_number_that_a_graph_break_hands_on_has_no_name_of_the_program():
    log = recompiled(["___stack0 == 0.25", "___stack0 == 0.5", "___stack0 == 0.75"])
    (finding,) = judge(RULE, log_alone(log)).findings
    assert "___stack" not in finding.advice
    assert "Keep the value on the device" in finding.advice


def test_compiling_in_the_first_step_is_clean():
    assert judge(RULE, log_alone(recompiled(RATES, every=9, first=0))).status == "clean"


def test_functions_compiled_once_each_and_after_a_reset_are_clean():
    once = tuple(compilation(f"{number}/0", 10.0 * number) for number in range(4))
    assert judge(RULE, log_alone(CompileLog(path="log", compiles=once))).status == "clean"
    anew = tuple(compilation("0/0", 10.0 * number) for number in range(4))
    assert judge(RULE, log_alone(CompileLog(path="log", compiles=anew))).status == "clean"


def test_phases_of_the_forward_and_the_backward_are_counted_and_their_moments_once():
    log = replace(recompiled(RATES[:2]), phases=tuple(
        Phase(name=name, start_ns=after_trace_ns(start), end_ns=after_trace_ns(end), compile_id=compile_id)
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
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.severity) == (3 * SECOND, None, "low")
    assert finding.once is not None
    assert finding.ordering_ns == 3 * SECOND // 1000


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
    assert "The log has no reason" in finding.detail


def test_without_the_torch_log_it_abstains():
    builder = TraceBuilder(recorded=CPU)
    builder.op("Torch-Compiled Region: 0/0", 0, 10)
    without = judge(RULE, builder.build())
    assert (without.status, without.reason) == ("abstained", f"not recorded: {RECORDED['compile_log']}")
    assert judge(RULE, log_alone(CompileLog(path="log"))).reason == "nothing was compiled"


def test_loops_of_jax_outside_of_jit_are_told_to_jit_the_step():
    def judged(name: str) -> Finding:
        events = [[one for one in compiled(1_000 * step, step, name) if one.kind != "retrace"] for step in range(1, 7)]
        (finding,) = _judge(*events).findings
        return finding

    finding = judged("scan")
    assert finding.title == "jax.lax.scan outside of jit is compiled 5 more times"
    assert "Put the whole step in one function with @jax.jit" in finding.advice
    assert judged("scan_tokens").title == "scan_tokens is compiled 5 more times"
