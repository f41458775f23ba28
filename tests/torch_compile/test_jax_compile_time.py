from __future__ import annotations

import re

from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.sections.compile import compile_section
from perfscope.analyzers.torch_compile.rules.compile_time.jax import blocks_of
from perfscope.dashboards.report.sections.jax_compile import jax_compile_fact, jax_compile_sections
from perfscope.model.finding import Outcome
from perfscope.model.jax_log import CompileEvent, CompileKind
from perfscope.model.trace import Trace
from tests.hlo_build import hlo_module, hlo_trace

RULE = load_rule("compile_time")
SECOND = 10**9


def layers(count: int, *, scope: str = "jvp()") -> HloModule:
    """A program with ``count`` products of line 13 of a model, and one of line 30."""
    meta = (
        f'metadata={{op_name="jit(train_step)/{scope}/dot_general" source_file="/home/me/model.py" source_line=LINE}}'
    )
    dot = "dot(%x{}, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, "
    lines = [f"%x{n + 1} = f32[8,8]{{1,0}} {dot.format(n)}{meta.replace('LINE', '13')}" for n in range(count)]
    return hlo_module(
        f"""
        ENTRY %main (x: f32[8,8], w: f32[8,8]) -> f32[8,8] {{
          %x0 = f32[8,8]{{1,0}} parameter(0)
          %w = f32[8,8]{{1,0}} parameter(1)
          {chr(10).join(lines)}
          ROOT %y = f32[8,8]{{1,0}} {dot.format(count)}{meta.replace("LINE", "30")}
        }}
        """,
        "jit_train_step",
    )


def event(kind: CompileKind, end: float, lasts: float, name: str = "jit(train_step)") -> CompileEvent:
    return CompileEvent(
        kind=kind, end_ns=round(end * SECOND), duration_ns=round(lasts * SECOND), function=name,
        file="/home/me/train.py", line=40,
    )  # fmt: skip


def compiled(seconds: float) -> tuple[CompileEvent, ...]:
    """``train_step`` traced for a quarter of ``seconds``, and compiled for the rest."""
    traced = seconds / 4
    return (event("trace", traced, traced, "train_step"), event("compile", seconds, seconds - traced))


def with_events(module: HloModule, *events: CompileEvent) -> Trace:
    trace = hlo_trace(module)
    return replace(trace, recorded=frozenset({"hlo", "compile_events"}), compile_events=events)


def _judge(module: HloModule, *events: CompileEvent) -> Outcome:
    return judge(RULE, with_events(module, *events))


def test_equal_blocks_that_take_long_to_compile_are_flagged_with_their_number():
    (finding,) = _judge(layers(32), *compiled(8)).findings
    assert finding.title == "train_step compiles 32 equal blocks one by one: 8.00 s"
    assert finding.where.label() == "/home/me/train.py:40"
    assert "/home/me/model.py:13" in finding.detail
    assert "jax.lax.scan" in finding.advice
    assert finding.cost_ns is not None
    assert 0 < finding.cost_ns < 8 * SECOND
    assert finding.cost_ns_per_step is None


def test_five_seconds_and_eight_blocks_are_the_thresholds():
    assert _judge(layers(8), *compiled(5)).status == "flagged"
    assert _judge(layers(8), *compiled(4.9)).status == "clean"
    assert _judge(layers(7), *compiled(8)).status == "clean"


def test_a_second_is_enough_where_all_steps_take_less():
    def status(seconds: float, stepping_ns: int) -> str:
        trace = with_events(layers(32), *compiled(seconds))
        return judge(RULE, replace(trace, window_ns=stepping_ns, window_steps=8)).status

    assert status(1, SECOND // 2) == "flagged"
    assert status(0.9, SECOND // 2) == "clean"
    assert status(4, 5 * SECOND) == "clean", "the steps are the wait"


def test_the_backward_pass_of_one_block_is_no_second_block():
    assert blocks_of(layers(32, scope="transpose(jvp())")) is None


def test_a_minute_without_a_cache_is_flagged_and_with_one_it_is_clean():
    (finding,) = _judge(layers(1), *compiled(60)).findings
    assert "jax_compilation_cache_dir" in finding.advice
    miss = CompileEvent(kind="cache_miss", end_ns=SECOND)
    assert _judge(layers(1), *compiled(60), miss).status == "clean"
    assert _judge(layers(1), *compiled(59)).status == "clean"


def test_a_cache_is_advised_for_what_a_scan_over_the_blocks_leaves():
    (finding,) = _judge(layers(32), *compiled(64)).findings
    assert finding.subject == "equal blocks written out in train_step"
    cold, unrolled = _judge(layers(32), *compiled(64), event("compile", 164, 100, "jit(evaluate)")).findings
    assert (unrolled.subject, cold.subject) == ("equal blocks written out in train_step", "no compilation cache")
    assert unrolled.cost_ns is not None
    assert cold.cost_ns == 164 * SECOND - unrolled.cost_ns
    assert "in a scan" in cold.detail


def constants(mebibytes: int) -> HloModule:
    text = f"""
        ENTRY %main (x: f32[8,1024]) -> f32[8,{mebibytes * 256}] {{
          %x = f32[8,1024]{{1,0}} parameter(0)
          %table = f32[1024,{mebibytes * 256}]{{1,0}} constant({{...}})
          ROOT %y = f32[8,{mebibytes * 256}]{{1,0}} dot(%x, %table), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, metadata={{op_name="jit(step)/dot_general" source_file="/home/me/model.py" source_line=5}}
        }}
    """  # noqa: E501
    return hlo_module(text)


def test_constants_of_16_mib_are_flagged_at_the_line_that_reads_them():
    (finding,) = judge(RULE, hlo_trace(constants(16))).findings
    assert (finding.cost_bytes, finding.where.label()) == (16 << 20, "/home/me/model.py:5")
    assert finding.title == "16.0 MiB of constants are compiled into jit_step"
    assert judge(RULE, hlo_trace(constants(15))).status != "flagged"


def test_the_report_has_time_by_function():
    section = compile_section([with_events(layers(1), *compiled(8), event("compile", 9, 1, "jit(multiply)"))])
    assert section.jax is not None
    assert [(one.name, one.total_ns) for one in section.jax.functions] == [
        ("train_step", 8 * SECOND),
        ("multiply", SECOND),
    ]
    assert jax_compile_fact(section.jax) == "compiling: 2 programs in 9.00 s of the whole run, train_step 8.00 s of it"
    (shown,) = jax_compile_sections(section.jax)
    assert re.fullmatch(r"2 programs in 9\.00 s .*", shown.summary)
    assert jax_compile_sections(None) == ()
