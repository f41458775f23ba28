"""Points of planned PyTorch programs: the step as the program runs it, its peak, and what is not known."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.sweep.judge import judged_trace
from perfscope.profiler.aot.torch_memory_file import PlanMemory, StepMemory
from tests.analyzers.plan_parts import graph, kernel, plan, trace_of

GIB = 1 << 30


def step(peak: int) -> StepMemory:
    return StepMemory(peak_bytes=peak, requested_bytes=peak, start_bytes=0, given_bytes=7, phase="backward")


MEMORY = PlanMemory(eager=step(90 * GIB), planned=step(60 * GIB))


def test_a_program_that_compiles_is_judged_by_its_planned_step(tmp_path: Path) -> None:
    point = judged_trace(trace_of(tmp_path, plan(graph(kernel()), memory=MEMORY)), (), (("seq", "1"),))
    assert (point.state, point.peak_bytes, point.inputs) == ("fits", 60 * GIB, (7, 0))
    assert point.programs == ("compiled step",)


def test_one_that_compiles_nothing_by_its_eager_step(tmp_path: Path) -> None:
    held = plan(graph(kernel()), memory=MEMORY, compiled_by="perfscope")
    point = judged_trace(trace_of(tmp_path, held), (), ())
    assert (point.state, point.peak_bytes) == ("does not fit", 90 * GIB)
    assert point.step is None  # no ops were kept beside this plan
    assert "cannot be modelled" in point.reason


def test_a_plan_of_an_earlier_perfscope_is_not_held_against_others(tmp_path: Path) -> None:
    point = judged_trace(trace_of(tmp_path, plan(graph(kernel()))), (), ())
    assert (point.state, point.judged, point.peak_bytes) == ("compiled", False, None)
    assert "not known" in point.reason


def test_a_program_that_failed_is_a_failed_variant(tmp_path: Path) -> None:
    held = plan(graph(kernel()), memory=MEMORY, failure="ValueError at train.py:3: no", complete=False)
    point = judged_trace(trace_of(tmp_path, held), (), ())
    assert point.state == "failed"
    assert "train.py:3" in point.reason
