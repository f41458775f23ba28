"""Which device programs are judged for: recorded before named before assumed."""

from __future__ import annotations

import pytest

from perfscope.analyzers.facts.program_device import program_device
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace

ON_GPU = hlo_module(
    f"ENTRY %main (a: f32[4]) -> f32[4] {{\n  %a = f32[4]{{0}} parameter(0)\n"
    f"  ROOT %n = f32[4]{{0}} negate(%a), {GPU}\n}}"
)
ON_CPU = hlo_module(
    "ENTRY %main (a: f32[4]) -> f32[4] {\n  %a = f32[4]{0} parameter(0)\n"
    '  ROOT %n = f32[4]{0} negate(%a), backend_config={"outer_dimension_partitions":["2"]}\n}'
)


def label(trace) -> str | None:
    known = program_device(trace)
    return None if known is None else known.label()


def named(trace, name: str):
    trace.judged_device = name
    return trace


def test_programs_alone_are_judged_for_an_assumed_device():
    assert label(hlo_trace(ON_GPU)) == "H100 SXM (assumed)"


def test_a_named_device_wins_over_the_assumption():
    assert label(named(hlo_trace(ON_GPU), "A100-SXM4-80GB")) == "A100 SXM 80GB"


def test_a_recorded_device_wins_over_a_named_one():
    trace = named(recorded_trace(ON_GPU, ops=[("n", 0, 1)], device="NVIDIA B200"), "A100-SXM4-80GB")
    assert label(trace) == "B200"


@pytest.mark.parametrize(("name", "expected"), [("Test GPU", None), ("", "H100 SXM (assumed)")])
def test_no_other_device_stands_in_for_one_without_known_peaks(name: str, expected: str | None):
    assert label(recorded_trace(ON_GPU, ops=[("n", 0, 1)], device=name)) == expected


def test_a_tpu_does_not_run_what_was_compiled_for_a_gpu():
    assert label(named(hlo_trace(ON_GPU), "TPU v5p")) == "H100 SXM (assumed)"


def test_programs_for_a_cpu_have_no_device():
    assert ON_CPU.platform == "cpu"
    assert label(named(hlo_trace(ON_CPU), "A100-SXM4-80GB")) is None
    assert label(hlo_trace(ON_GPU, ON_CPU)) is None
