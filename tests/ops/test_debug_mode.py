"""Modes for finding errors that were left on."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time import is_interpreted
from perfscope.model.documents.run import ProgramFact
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.hlo_build import hlo_module, recorded_trace

RULE = load_rule("debug_mode")
CPU = EVERYTHING - {"device_work", "launch_links", "op_links", "runtime_calls", "waiting_calls"}
LINE = ProgramFact(name="anomaly_mode", value="checks for NaN", file="train.py", line=4)


def backward(*, checked: int, nodes: int = 4, recorded: frozenset[str] = CPU) -> TraceBuilder:
    """A step of 1,000 us with nodes of 100 us, of which the last 40 us check for NaN in ``checked`` of them."""
    builder = TraceBuilder(recorded=recorded)
    builder.step(1, 0, 1000)
    for node in range(nodes):
        at = 100.0 * node
        builder.op(
            f"autograd::engine::evaluate_function: {'AddmmBackward0' if node else 'AccumulateGrad'}", at, at + 100
        )
        builder.op("AddmmBackward0", at, at + 50)
        builder.op("aten::item", at + 10, at + 20)  # a read of the program's own function
        if node < checked:
            builder.op("aten::isnan", at + 60, at + 70)
            builder.op("aten::_is_any_true", at + 70, at + 90)
            builder.op("aten::any", at + 72, at + 88)
            builder.op("aten::item", at + 90, at + 100)
    return builder


def distributions(*, gap_us: float = 10, checks: bool = True, wait_us: float = 0) -> Trace:
    """A step of 1,000 us: a product, two ops that check its result in 2 us each, ``gap_us`` apart, and a product."""
    g = GraphBuilder()
    x = g.op("mm", [g.input((4, 4)), g.input((4, 4))], line=3)
    valid = g.op("sub", [x, x], line=4, checks=checks)
    g.op("_local_scalar_dense", [valid], (), line=4, checks=checks, host_read="check" if checks else "bool")
    g.op("mm", [x, x], line=5)
    builder = TraceBuilder(recorded=CPU, op_graph=g.graph())
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 100)
    builder.op("aten::sub", 200, 202)
    builder.op("aten::_local_scalar_dense", 202 + gap_us, 204 + gap_us)
    builder.op("aten::mm", 500, 600)
    if wait_us:
        builder.core_reading(0, 500, 0)
        builder.core_reading(500, 1000, wait_us)
    return builder.build()


def test_checks_of_distributions_cost_the_time_from_their_first_to_their_last_op() -> None:
    (finding,) = judge(RULE, distributions()).findings
    assert (finding.cost_ns, finding.where.line) == (14_000, 4)
    assert "2 ops per step" in finding.title
    assert "set_default_validate_args(False)" in finding.advice
    (read,) = judge(load_rule("host_sync"), distributions()).findings
    assert "set_default_validate_args(False)" in read.advice


def test_short_checks_and_the_same_ops_of_the_program_are_clean() -> None:
    assert judge(RULE, distributions(gap_us=6)).status == "flagged"
    assert judge(RULE, distributions(gap_us=5)).status == "clean"
    assert judge(RULE, distributions(gap_us=5, wait_us=200)).status == "flagged"  # 9 us of 800 us with a core
    assert judge(RULE, distributions(checks=False)).status == "clean"


def with_facts(builder: TraceBuilder, *facts: ProgramFact) -> Trace:
    return replace(builder.build(), program_facts=facts)


def test_anomaly_mode_costs_its_checks_and_stacks_at_the_line_that_turns_it_on() -> None:
    stacks = ProgramFact(name="anomaly_stacks", count=10, total_ns=500_000)  # 50 us each, of 3 nodes with stacks
    outcome = judge(RULE, with_facts(backward(checked=4), LINE, stacks))
    (finding,) = outcome.findings
    assert finding.cost_ns == 4 * 40_000 + 3 * 50_000
    assert (finding.where.file, finding.where.line) == ("train.py", 4)
    assert "4 checks for NaN per step" in finding.title


def test_a_trace_of_another_tool_has_the_checks_and_no_line() -> None:
    (finding,) = judge(RULE, backward(checked=4).build()).findings
    assert (finding.cost_ns, finding.where.file) == (160_000, None)


def test_below_half_of_the_nodes_the_program_checks_for_itself() -> None:
    assert judge(RULE, backward(checked=2).build()).status == "flagged"
    assert judge(RULE, backward(checked=1).build()).status == "clean"


def test_consequences_of_anomaly_mode_are_not_judged() -> None:
    analysis = analyze(backward(checked=4).build())
    for rule in ("host_sync", "host_bound", "launch_bound", "small_kernels", "unfused_ops"):
        assert analysis[rule].status == "abstained"
    assert "anomaly mode" in (analysis["host_bound"].reason or "")
    assert "anomaly mode" not in (analyze(backward(checked=0).build())["host_bound"].reason or "")


def blocking(idle_us: float) -> Trace:
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.kernel("gemm", 0, 1000 - idle_us)
    return with_facts(builder, ProgramFact(name="cuda_launch_blocking", value="1"))


def test_blocking_launches_cost_at_most_the_idle_time() -> None:
    (finding,) = judge(RULE, blocking(300)).findings
    assert finding.cost_ns == 300_000
    assert judge(RULE, blocking(9)).status == "clean"
    assert judge(RULE, replace(blocking(300), program_facts=())).status == "clean"


def deterministic(fill_us: float, below: str = "aten::empty") -> Trace:
    builder = TraceBuilder(recorded=CPU)
    builder.step(1, 0, 1000)
    builder.op(below, 0, 500)
    builder.op("aten::fill_", 0, fill_us)
    return with_facts(builder, ProgramFact(name="deterministic_algorithms", value="true"))


def test_memory_that_deterministic_algorithms_fill() -> None:
    (finding,) = judge(RULE, deterministic(10)).findings
    assert finding.cost_ns == 10_000
    assert judge(RULE, deterministic(9)).status == "clean"
    assert judge(RULE, deterministic(100, below="aten::zeros")).status == "clean"


def test_memory_that_deterministic_algorithms_fill_is_no_data_movement_of_the_program() -> None:
    outcomes = analyze([deterministic(500)], ["debug_mode", "data_movement"])
    assert (outcomes["debug_mode"].status, outcomes["data_movement"].status) == ("flagged", "clean")
    without = replace(deterministic(500), program_facts=())
    assert analyze([without], ["debug_mode", "data_movement"])["data_movement"].status == "flagged"


def test_without_ops_it_abstains() -> None:
    assert judge(RULE, backward(checked=4, recorded=frozenset({"steps"})).build()).status == "abstained"


def interpreted(line: int = 7, *, loop_us: float = 500) -> Trace:
    """A step of 1,000 us with a loop of line 7, in which an op runs for ``loop_us``."""
    meta = 'metadata={op_name="jit(step)/while" source_file="/home/me/kernels.py" source_line=7}'
    module = hlo_module(f"""
        %body (p: (s32[], f32[64])) -> (s32[], f32[64]) {{
          %p = (s32[], f32[64]) parameter(0)
          %i = s32[] get-tuple-element(%p), index=0
          %x = f32[64]{{0}} get-tuple-element(%p), index=1
          %one = s32[] constant(1)
          %next = s32[] add(%i, %one)
          %work = f32[64]{{0}} negate(%x)
          ROOT %r = (s32[], f32[64]) tuple(%next, %work)
        }}
        %cond (p: (s32[], f32[64])) -> pred[] {{
          %p = (s32[], f32[64]) parameter(0)
          %i = s32[] get-tuple-element(%p), index=0
          %n = s32[] constant(64)
          ROOT %c = pred[] compare(%i, %n), direction=LT
        }}
        ENTRY %main (a: (s32[], f32[64])) -> (s32[], f32[64]) {{
          %a = (s32[], f32[64]) parameter(0)
          ROOT %w = (s32[], f32[64]) while(%a), condition=%cond, body=%body, {meta}
        }}
    """)
    trace = recorded_trace(module, ops=[("work", 0, loop_us)], steps=[(0, 1000)])
    fact = ProgramFact(name="pallas_interpret", value="true", file="kernels.py", line=line, count=3)
    return replace(trace, program_facts=(fact,), recorded=trace.recorded | {"host_ops"})


def test_an_interpreted_kernel_costs_the_loops_of_its_line() -> None:
    (finding,) = judge(RULE, interpreted()).findings
    assert finding.title == "a Pallas kernel runs in interpret mode: 3 calls"
    assert (finding.cost_ns, finding.where.label()) == (500_000, "kernels.py:7")
    assert "interpret=True" in finding.advice


def test_an_interpreted_kernel_that_did_not_run_has_no_time() -> None:
    (finding,) = judge(RULE, interpreted(line=99)).findings
    assert (finding.cost_ns, finding.basis) == (None, "structural")


def test_a_loop_over_the_grid_of_an_interpreted_kernel_is_no_scan() -> None:
    loop = interpreted().hlo[0].entry_computation().root
    assert is_interpreted(interpreted(), loop)
    assert not is_interpreted(interpreted(line=99), loop)


def test_switches_of_jax_are_named_with_their_line() -> None:
    fact = ProgramFact(name="jax_debug_nans", value="true", file="train.py", line=3)
    trace = replace(interpreted(), program_facts=(fact,))
    (finding,) = judge(RULE, trace).findings
    assert (finding.subject, finding.where.label()) == ("jax_debug_nans is on", "train.py:3")
    assert judge(RULE, replace(trace, program_facts=())).status == "clean"


def test_disabled_jit_costs_the_dispatch_of_single_operations() -> None:
    fact = ProgramFact(name="jax_disable_jit", value="true", file="train.py", line=3)
    builder = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links", "op_links", "runtime_calls"})
    builder.step(1, 0, 1000)
    builder.op("dot", 0, 400)
    trace = replace(builder.build(), program_facts=(fact,), hlo=interpreted().hlo)
    (finding,) = judge(RULE, trace).findings
    assert (finding.cost_ns, finding.where.label()) == (600_000, "train.py:3")
    assert judge(load_rule("host_bound"), trace).status == "abstained"
    assert judge(load_rule("unjitted_step"), replace(trace, program_facts=(fact, UNJITTED))).status == "clean"
    assert judge(load_rule("unjitted_step"), replace(trace, program_facts=(UNJITTED,))).status == "flagged"


UNJITTED = ProgramFact(name="unjitted_step", value="step", file="train.py", line=3, count=2400)
