"""Savings of a fix in a program: modelled, measured, and never more than measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.hlo.execution import executions_of, exposed_ns, measured_ns, measured_run_ns
from perfscope.analyzers.programs.saving import Part, bytes_ns, once_ns, price, program_roof_ns
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace

MODULE = hlo_module(
    f"""
    ENTRY %main (a: f32[1048576]) -> f32[1048576] {{
      %a = f32[1048576]{{0}} parameter(0)
      %x = f32[1048576]{{0}} exponential(%a), {GPU}
      %y = f32[1048576]{{0}} negate(%x)
      ROOT %z = f32[1048576]{{0}} negate(%y)
    }}
    """
)
TWICE = [("x", 0, 10), ("y", 10, 14), ("z", 14, 20), ("x", 100, 110), ("y", 110, 116), ("z", 116, 120)]


def part(*names: str, ns: float | None, whole: bool = False) -> Part:
    return Part(module=MODULE, instructions=names, modelled_ns=ns, whole=whole)


def test_a_program_alone_costs_one_run_on_the_assumed_device():
    trace = hlo_trace(MODULE)
    found = price(trace, [part("x", "y", ns=2000.0)])
    assert found is not None
    assert (found.cost["cost_ns"], found.cost["cost_ns_per_step"], found.cost["basis"]) == (2000, None, "modelled")
    assert found.text == "2.00 us per run of the program, on H100 SXM (assumed)"
    assert program_roof_ns(trace)[0] == pytest.approx(3 * 8 * 1048576 / 3.35e12 * 1e9, rel=0.01)
    assert found.cost["severity"] == "medium"  # a quarter of the run, but of an assumed device


def test_on_a_named_device_it_may_be_high():
    trace = hlo_trace(MODULE)
    trace = replace(trace, judged_device="A100-SXM4-80GB")
    found = price(trace, [part("x", ns=2000.0)])
    assert found is not None
    assert (found.cost["severity"], found.text) == ("high", "2.00 us per run of the program, on A100 SXM 80GB")


def test_no_more_is_saved_than_was_measured():
    trace = recorded_trace(MODULE, ops=TWICE, steps=[(0, 50), (50, 150)])
    model_is_smaller, measured_is_smaller = price(trace, [part("y", ns=3000.0)]), price(trace, [part("y", ns=9000.0)])
    assert model_is_smaller is not None
    assert measured_is_smaller is not None
    assert (model_is_smaller.cost["cost_ns"], model_is_smaller.cost["cost_ns_per_step"]) == (6000, 3000)
    assert measured_is_smaller.cost["cost_ns"] == 10_000
    assert measured_is_smaller.text == "5.00 us per step, modelled on H100 SXM"


def test_measured_time_replaces_a_model_of_all_the_time():
    trace = recorded_trace(MODULE, ops=TWICE)
    found = price(trace, [part("y", ns=1.0, whole=True)])
    assert found is not None
    assert (found.cost["cost_ns"], found.cost["cost_ns_per_step"], found.cost["basis"], found.text) == (
        10_000,
        None,
        "measured",
        "10.0 us in all",
    )


def test_an_instruction_in_two_parts_is_saved_once():
    trace = recorded_trace(MODULE, ops=TWICE)
    found = price(trace, [part("y", ns=4000.0), part("y", "z", ns=8000.0)])
    assert found is not None
    assert found.cost["cost_ns"] == 20_000  # y and z took that long in both runs


def test_what_other_work_hides_is_not_saved():
    trace = recorded_trace(MODULE, ops=[("x", 0, 10), ("y", 4, 30), ("z", 40, 50)])
    assert (measured_ns(trace, MODULE, ["x"]), exposed_ns(trace, MODULE, ["x"])) == (10_000, 4_000)
    assert exposed_ns(trace, MODULE, ["x", "y"]) == 30_000


def test_work_that_overlaps_nothing_of_it_does_not_matter():
    ops = [("x", 0, 10), ("y", 10, 20), ("z", 15, 30), ("x", 40, 50), ("z", 41, 42), ("y", 45, 60)]
    trace = recorded_trace(MODULE, ops=ops)
    # x: 0-10 and 40-45 without 41-42; y: 10-15 and 50-60
    assert exposed_ns(trace, MODULE, ["x"]) == 14_000
    assert exposed_ns(trace, MODULE, ["y"]) == 15_000
    # together also 45-50, where both ran
    assert exposed_ns(trace, MODULE, ["x", "y"]) == 34_000


def test_one_run_of_an_instruction_is_measured_or_its_roof():
    trace = recorded_trace(MODULE, ops=[("x", 0, 10), ("z", 10, 12), ("x", 20, 40), ("z", 40, 44)])
    once = {name: ns for (_, _, name), ns in once_ns(trace).items()}
    assert (once["x"], once["z"]) == (15_000, 3_000)
    assert once["y"] == pytest.approx(8 * 1048576 / 3.352e12 * 1e9)


def test_an_instruction_around_others_hides_nothing_and_counts_for_nothing():
    trace = recorded_trace(MODULE, ops=[("z", 0, 100), ("x", 0, 10), ("y", 20, 30)], around=("z",))
    assert (exposed_ns(trace, MODULE, ["x"]), exposed_ns(trace, MODULE, ["z"])) == (10_000, None)


def test_devices_side_by_side_save_once():
    ops = [("x", 0, 10), ("y", 10, 14), ("x", 0, 10), ("y", 10, 16)]
    trace = recorded_trace(MODULE, ops=ops, ordinals=[0, 0, 1, 1])
    ran = executions_of(trace, MODULE)
    assert ran is not None
    assert (ran.count, ran.devices, ran.rounds) == (2, 2, 1)
    assert measured_run_ns(trace, MODULE, ["y"]) == 5_000
    found = price(trace, [part("y", ns=None, whole=True)])
    assert found is not None
    assert found.cost["cost_ns"] == 5_000


def test_executions_by_their_numbers_where_they_have_some():
    ops = [("x", 0, 1), ("x", 2, 3), ("x", 4, 5), ("y", 6, 7)]  # x is two kernels in run 4
    ran = executions_of(recorded_trace(MODULE, ops=ops, runs=[4, 4, 9, 9]), MODULE)
    assert ran is not None
    assert ran.count == 2


def test_a_program_that_did_not_run_cost_no_time():
    other = hlo_module(
        f"ENTRY %main (a: f32[4]) -> f32[4] {{\n  %a = f32[4]{{0}} parameter(0)\n"
        f"  ROOT %q = f32[4]{{0}} negate(%a), {GPU}\n}}",
        "jit_other",
    )
    trace = recorded_trace(MODULE, other, ops=TWICE)
    assert executions_of(trace, other) is None
    assert price(trace, [Part(module=other, instructions=("q",), modelled_ns=5.0)]) is None


def test_without_a_device_only_measured_time_counts():
    trace = recorded_trace(MODULE, ops=TWICE, device="Test GPU")
    assert bytes_ns(trace, 1e6) is None
    assert price(trace, [part("x", ns=None)]) is None
    found = price(trace, [part("x", ns=None, whole=True)])
    assert found is not None
    assert found.cost["cost_ns"] == 20_000


def test_programs_of_several_platforms_have_no_device_to_be_a_share_of():
    on_cpu = replace(MODULE, platform="cpu", name="jit_other")
    found = price(hlo_trace(MODULE, on_cpu), [part("x", ns=2000.0)])
    assert found is not None
    assert (found.cost["cost_ns"], found.cost["severity"], found.text) == (
        2000,
        "low",
        "2.00 us per run of the program",
    )


@pytest.mark.corpus
def test_executions_in_real_and_synthetic_profiles(corpus: Path):
    naive = xspace_reader.read(corpus / "aot" / "synth_attn_naive.xplane.pb.gz")
    ran = executions_of(naive, naive.hlo[0])
    assert ran is not None
    assert (ran.count, ran.devices) == (3, 1)
    spmd = xspace_reader.read(corpus / "aot" / "md.xplane.pb.gz")
    step = next(module for module in spmd.hlo if module.name == "jit_tp_step")
    ran = executions_of(spmd, step)
    assert ran is not None
    assert (ran.rounds, ran.devices) == (3, 8)


@pytest.mark.parametrize(("platform", "spent"), [("cpu", 8_000), ("gpu", 2_000)])
def test_on_a_cpu_instructions_share_the_time_in_which_several_run(platform, spent):
    """On an accelerator parallel work hides an instruction; on a CPU the others would get the processors."""
    module = replace(MODULE, platform=platform)
    trace = recorded_trace(module, ops=[("x", 0, 14), ("y", 2, 14), ("z", 14, 20)], steps=[(0, 50)])
    assert exposed_ns(trace, module, ["x"]) == spent
