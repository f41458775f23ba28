from __future__ import annotations

from perfscope.analyzers.compile_log import CompileLog
from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.jax_log import CompileEvent, CompileKind
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import RECORDED, Source, Trace
from tests.build import EVERYTHING, TraceBuilder

RULE = load_rule("recompilation")
MS = 1_000_000


def event(kind: CompileKind, end_ms: int, lasts_ms: int | None, step: int | None, function: str = "jit(step)",
          reason: str | None = None) -> CompileEvent:  # fmt: skip
    return CompileEvent(
        kind=kind, end_ns=end_ms * MS, duration_ns=None if lasts_ms is None else lasts_ms * MS, step=step,
        function=function, file="train.py", line=131, reason=reason,
    )  # fmt: skip


def compiled(at_ms: int, step: int | None, function: str = "step") -> list[CompileEvent]:
    """Traced for 10 ms, of which 4 inside another trace of its own; lowered for 5, compiled for 20."""
    return [
        event("retrace", at_ms, None, step, function, "different input types: at x, now f32[5] and before f32[4]"),
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
    assert finding.cost_ns == 3 * 35 * MS  # the nested trace is no time of its own; step 0 had to compile
    assert finding.cost_ns_per_step == 3 * 35 * MS // 4
    assert (finding.where.label(), finding.severity) == ("train.py:131", "high")
    assert "different input types" in finding.title
    assert [(row["compilations"], row["spent_ns"]) for row in finding.evidence] == [(1, 35 * MS)] * 3


def test_the_threshold_is_two_steps():
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
    assert (finding.cost_ns_per_step, finding.severity) == (2 * 35 * MS // 1000, "low")


def test_torch_that_compiled_nothing_beside_jax_changes_nothing():
    first = compiled(0, 0)
    outcome = _judge(first, compiled(500, 5), compiled(900, 9), log=CompileLog(path="run"))
    assert outcome.status == "flagged"
    assert _judge(first, log=CompileLog(path="run")).status == "clean"


def test_without_the_log_it_abstains():
    without = judge(RULE, TraceBuilder(recorded=EVERYTHING - {"compile_events", "hlo"}).build())
    assert (without.status, without.reason) == ("abstained", f"not recorded: {RECORDED['hlo']}")
    programs = judge(RULE, TraceBuilder(recorded=frozenset({"hlo"})).build())
    assert (programs.status, programs.reason) == ("abstained", f"not recorded: {RECORDED['compile_events']}")
