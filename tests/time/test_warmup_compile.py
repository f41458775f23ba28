from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time import step_accounts, warm_accounts
from perfscope.analyzers.time.host_activity import compiles
from perfscope.model.finding import Finding
from perfscope.model.trace import CallKind
from tests.build import EVERYTHING, TraceBuilder

RULE = load_rule("warmup_compile")


def _steps(compile_us: float, *, call: str | None = None, cold: int = 0) -> TraceBuilder:
    """Two steps of 10 ms; in the one of number ``cold`` the host compiles before it launches."""
    b = TraceBuilder()
    for number in range(2):
        begin = 10_000 * number
        b.step(number, begin, begin + 10_000)
        spent = compile_us if number == cold else 0
        if spent and call is None:
            b.annotation("compile_inner (dynamo_timed)", begin, begin + spent)
        elif spent and call is not None:
            b.call(call, begin, begin + spent, kind=CallKind.OTHER)
        b.launched("gemm", begin + spent, begin + spent + 1, begin + 10_000, correlation=number + 1)
    return b


def test_a_step_that_compiles_is_named() -> None:
    (finding,) = judge(RULE, _steps(6_000, cold=1).build()).findings
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (6_000_000, None, "measured")
    assert (finding.about, finding.record) == ("program", "")
    assert "step 1" in finding.detail
    assert finding.evidence[0]["host_was_in"] == "compile_inner (dynamo_timed)"


def test_what_only_the_first_recorded_step_compiles_is_a_fault_of_the_recording() -> None:
    (finding,) = judge(RULE, _steps(6_000).build()).findings
    assert (finding.about, finding.advice, finding.cost_ns) == ("recording", "", None)
    assert "schedule" in finding.record
    assert finding.covers_ns == {"compilation": 6_000_000}, "the time is explained all the same"


def test_it_is_left_out_of_averages() -> None:
    trace = _steps(6_000).build()
    ((cold,), (account,)) = trace.fact(step_accounts), trace.fact(warm_accounts)
    assert (cold.numbers, cold.cold, account.numbers) == ((0, 1), (0,), (1,))
    assert (cold.whole_ns, account.whole_ns, account.busy_ns) == (20_000_000, 10_000_000, 9_999_000)
    steps = analyze(trace, []).steps
    assert [step.compiled for step in steps] == [True, False]


def test_steps_that_all_look_up_compiled_code_stay() -> None:
    (account,) = _steps(4_000).build().fact(warm_accounts)
    assert account.numbers == (0, 1)


def test_loading_of_modules_counts() -> None:
    (finding,) = judge(RULE, _steps(4_000, call="cuModuleLoadDataEx").build()).findings
    assert finding.cost_ns == 4_000_000


def test_the_threshold_is_a_twentieth_of_the_steps() -> None:
    assert judge(RULE, _steps(1_000).build()).status == "flagged"
    assert judge(RULE, _steps(999).build()).status == "clean"


def test_what_another_finding_explains_is_not_said_twice() -> None:
    trace = _steps(6_000, cold=1).build()
    covers = {"compilation": 5_500_000}
    again = Finding(subject="f", title="f", advice="fix", severity="high", basis="measured", covers_ns=covers)
    assert RULE.rest is not None
    assert not list(RULE.rest(trace, [("recompilation", again)]))
    (finding,) = RULE.rest(trace, [("recompilation", replace(again, covers_ns={"compilation": 4_000_000}))])
    assert (finding.cost_ns, finding.covers_ns) == (2_000_000, {"compilation": 6_000_000})


def test_the_line_is_that_of_the_sampled_stacks() -> None:
    b = _steps(6_000)
    for at in (1_000, 3_000, 5_000):
        b.sample("train.py(3): main > train.py(9): step > compile", at, step=0)
    b.sample("train.py(3): main > train.py(30): log > write", 8_000, step=0)
    (finding,) = judge(RULE, b.build()).findings
    assert finding.where.label() == "train.py:9"


def test_compiling_beside_a_busy_device_costs_nothing() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.launched("gemm", 0, 1, 10_000, correlation=1)
    b.annotation("compile_inner (dynamo_timed)", 10, 9_000)
    assert judge(RULE, b.build()).status == "clean"


def test_without_any_work_it_abstains() -> None:
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"device_work"}).build()).status == "abstained"


@pytest.mark.parametrize(
    "name",
    [
        "FusionKernelRuntime::compileFusionParallel",
        "executor_utils::Nvrtc::CompileProgram",
        "FusionExecutorCache::getKernelRuntimeFor::compileNewKRT",
    ],
)
def test_the_compiler_of_nvfuser_is_known_by_its_ranges(name: str) -> None:
    assert compiles(name)
    assert not compiles("FusionKernelRuntime::runWithInputs")
