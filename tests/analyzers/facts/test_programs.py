"""One row a program: what ran, how long, the least it could take, and what of it is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers import load
from perfscope.analyzers.facts.hlo_roofline import roof_sum_ns, roofline
from perfscope.analyzers.facts.hlo_time import hlo_time
from perfscope.analyzers.facts.programs import Program, programs
from perfscope.analyzers.hardware import find_device
from perfscope.analyzers.hlo.cost import module_cost
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.trace import Trace
from tests.conftest import corpus_files
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace

H100 = "NVIDIA H100 80GB HBM3"


def step(name: str = "jit_step") -> HloModule:
    """A product of 4096 x 4096 bfloat16 matrices (2 * 4096^3 FLOPs) and its negation."""
    return hlo_module(
        f"""
        ENTRY main {{
          a = bf16[4096,4096]{{1,0}} parameter(0)
          dot = bf16[4096,4096]{{1,0}} dot(a, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {GPU},
            metadata={{op_name="jit(step)/jvp(mlp)/dot_general" source_file="train.py" source_line=7}}
          ROOT neg = bf16[4096,4096]{{1,0}} negate(dot), {GPU},
            metadata={{op_name="jit(step)/transpose(jvp(mlp))/neg" source_file="train.py" source_line=9}}
        }}
        """.replace(f"{GPU},\n            metadata", f"{GPU}, metadata"),
        name,
    )


def loop(trips: int | None) -> HloModule:
    """A loop around an addition; ``None``: how often it runs is not known."""
    known = f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}' if trips is not None else ""
    return hlo_module(
        f"""
        body {{
          p = (f32[1024]{{0}}) parameter(0)
          x = f32[1024]{{0}} get-tuple-element(p), index=0
          add = f32[1024]{{0}} add(x, x), {GPU}
          ROOT t = (f32[1024]{{0}}) tuple(add)
        }}

        cond {{
          q = (f32[1024]{{0}}) parameter(0)
          ROOT more = pred[] constant(true)
        }}

        ENTRY main {{
          a = f32[1024]{{0}} parameter(0)
          start = (f32[1024]{{0}}) tuple(a)
          ROOT while = (f32[1024]{{0}}) while(start), condition=cond, body=body{known}
        }}
        """
    )


def only(trace: Trace) -> Program:
    (program,) = trace.fact(programs)
    return program


def test_a_program_alone_is_modelled_on_an_assumed_device_that_says_so() -> None:
    module = step()
    program = only(hlo_trace(module))
    assert (program.execution, program.utilization) == (None, None)
    assert program.flops == 2 * 4096**3 + 4096**2
    assert program.bytes == (2 + 2) * 2 * 4096**2  # the product reads one matrix once
    assert program.flops_by_phase == {"forward": 2 * 4096**3, "backward": 4096**2}
    assert program.exact
    device = find_device(H100)
    assert device is not None
    assert program.least is not None
    assert (program.least.device, program.least.assumed) == (f"{device.name} (assumed)", True)
    assert program.least.total_ns == pytest.approx(roof_sum_ns(roofline(module_cost(module), device)))
    assert sum(program.least.by_bound.values()) == pytest.approx(program.least.total_ns)
    assert program.least.bound == "compute"
    assert program.peak_known_by == "modelled"


def test_executions_time_and_use_are_measured() -> None:
    ops = [("dot", 0, 300), ("neg", 310, 350), ("dot", 1000, 1300), ("neg", 1310, 1350)]
    program = only(recorded_trace(step(), ops=ops, runs=[1, 1, 2, 2]))
    ran = program.execution
    assert ran is not None
    assert (ran.count, ran.devices, ran.counted) == (2, 1, True)
    assert (ran.instructions_ns, ran.span_ns, ran.run_ns) == (680_000, 700_000, 350_000)
    assert program.least is not None
    assert not program.least.assumed
    use = program.utilization
    device = find_device(H100)
    assert use is not None
    assert device is not None
    assert use.mfu == pytest.approx(2 * 4096**3 / (350e-6 * device.peak_flops["bfloat16"]))
    assert use.hfu == use.mfu  # nothing is computed again


def test_executions_that_are_not_numbered_are_what_most_instructions_agree_on() -> None:
    ops = [("dot", 0, 300), ("neg", 310, 350), ("dot", 1000, 1300), ("neg", 1310, 1350), ("neg", 1350, 1360)]
    ran = only(recorded_trace(step(), ops=ops)).execution
    assert ran is not None
    assert (ran.count, ran.counted, ran.span_ns) == (2, False, None)
    assert ran.run_ns == pytest.approx(690_000 / 2)


def test_devices_run_each_its_own_execution() -> None:
    ops = [("dot", 0, 300), ("dot", 5, 305), ("dot", 400, 700), ("dot", 405, 705)]
    ran = only(recorded_trace(step(), ops=ops, runs=[1, 1, 2, 2], ordinals=[0, 1, 0, 1])).execution
    assert ran is not None
    assert (ran.count, ran.devices, ran.span_ns) == (4, 2, 1_200_000)


def test_a_recording_that_names_no_device_has_no_roofline() -> None:
    program = only(recorded_trace(step(), ops=[("dot", 0, 300)], runs=[1], device=""))
    assert program.execution is not None
    assert (program.least, program.utilization) == (None, None)


def test_a_device_that_the_user_named_stands_for_one_that_is_not_recorded() -> None:
    trace = recorded_trace(step(), ops=[("dot", 0, 300)], runs=[1], device="")
    trace.judged_device = H100
    program = only(trace)
    assert program.least is not None
    assert not program.least.assumed
    assert program.utilization is not None


def test_a_trip_count_that_is_not_known_makes_lower_bounds() -> None:
    known, unknown = only(hlo_trace(loop(8))), only(hlo_trace(loop(None)))
    assert (known.flops, known.exact) == (8 * 1024, True)
    assert (unknown.flops, unknown.exact) == (1024, False)
    assert known.least is not None
    assert unknown.least is not None
    assert (known.least.exact, unknown.least.exact) == (True, False)


def test_arithmetic_that_is_not_known_is_not_zero() -> None:
    call = hlo_module(
        f"""
        ENTRY main {{
          a = f32[64]{{0}} parameter(0)
          ROOT call = f32[64]{{0}} custom-call(a), custom_call_target="mine", {GPU}
        }}
        """
    )
    program = only(hlo_trace(call))
    assert (program.flops, program.unknown, program.exact) == (None, 1, False)
    assert program.least is not None
    assert not program.least.exact


def test_a_program_that_is_not_compiled_yet_has_arithmetic_alone() -> None:
    text = "ENTRY main {\n  a = f32[8,8]{1,0} parameter(0)\n  ROOT add = f32[8,8]{1,0} add(a, a)\n}\n"
    program = only(hlo_trace(hlo_module(text, scheduled=False)))
    assert (program.flops, program.bytes, program.peak_bytes, program.least) == (64, None, None, None)


def test_what_ran_and_was_not_recorded_has_a_row_and_the_times_add_up() -> None:
    trace = recorded_trace(step("jit_other"), ops=[("dot", 0, 300)], runs=[1])
    stranger = Trace(
        source=trace.source, strings=trace.strings, rows=trace.rows, recorded=trace.recorded, hlo=(step(),)
    )
    ran, alone = stranger.fact(programs)
    assert (ran.name, ran.module_index, ran.flops) == ("jit_other", None, None)
    assert ran.execution is not None
    assert ran.execution.instructions_ns == stranger.fact(hlo_time).total_ns == 300_000
    assert (alone.name, alone.execution) == ("jit_step", None)


def test_programs_of_one_name_are_told_apart() -> None:
    names = [program.name for program in hlo_trace(step(), step()).fact(programs)]
    assert len(set(names)) == 2


FILES = [*corpus_files("xplane", "*[0-9].xplane.pb.gz"), *corpus_files("aot", "*.xplane.pb.gz")]


@pytest.mark.corpus
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_time_of_all_programs_is_the_time_of_all_instructions(path: Path) -> None:
    trace = load.load_one(path)
    found = trace.fact(programs)
    ran = [program.execution for program in found if program.execution is not None]
    assert ran
    assert sum(one.instructions_ns for one in ran) == trace.fact(hlo_time).total_ns
    assert {program.module_index for program in found} >= set(range(len(trace.hlo)))
    for program in found:
        if program.flops is not None:
            assert sum(program.flops_by_phase.values()) == program.flops
