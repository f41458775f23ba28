"""A variant's point from compiled programs: those of the fixtures, as a run folder would hold them."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.readers.load import load_one
from perfscope.model.documents.compile_manifest import CompiledProgram
from perfscope.model.documents.torch_plan import PlanMemory, StepMemory
from perfscope.model.trace import Trace
from perfscope.plugins.ahead.sweep.document import SweptVariant
from perfscope.plugins.ahead.sweep.evaluate import evaluate_trace, evaluate_variant, exceeds_memory, required_bytes
from perfscope.plugins.ahead.sweep.front import Swept, pareto_front
from tests.plans.build import graph, kernel, plan, trace_of

PROGRAMS = Path(__file__).parents[4] / "fixtures" / "h100-programs"
POLICIES = ("none", "dots", "full", "names")


def _trace(folder: Path, name: str, target: str = "h100", memory: str | None = None) -> Trace:
    path = folder / f"{name}.hlo.pb"
    path.write_bytes(lzma.decompress((PROGRAMS / f"{name}.hlo.pb.xz").read_bytes()))
    trace = load_one(path)
    return replace(trace, target=parse_target(target, memory))


def _said(**more: int) -> CompiledProgram:
    return CompiledProgram(file="programs/00.jit_step.hlo.pb", name="jit_step", **more)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[SweptVariant]:
    folder = tmp_path_factory.mktemp("programs")
    return [
        evaluate_trace(
            _trace(folder, f"attention-naive-scan-small-{policy}"),
            [_said(argument_bytes=8, output_bytes=8)],
            {"policy": policy},
        )
        for policy in POLICIES
    ]


def test_points_of_the_fixtures(policies: list[SweptVariant]) -> None:
    assert {point.state for point in policies} == {"fits"}
    peaks = {point.settings["policy"]: point.peak_bytes for point in policies}
    # what XLA planned for it: provenance.toml of the fixtures
    text = (PROGRAMS / "provenance.toml").read_text()
    for policy, peak in peaks.items():
        part = text.split(f'"attention-naive-scan-small-{policy}.hlo.pb.xz"')[1].split("peak_bytes = ")[1]
        assert peak == pytest.approx(int(part.split("\n")[0]), rel=0.01)
    assert peaks["none"] is not None
    assert peaks["full"] is not None
    assert peaks["none"] > 2 * peaks["full"]
    assert all(0 < (point.step_low_ns or 0) < (point.step_high_ns or 0) for point in policies)
    assert all(point.programs == ("jit_step",) and point.inputs == (8, 8) for point in policies)


def test_the_policy_that_keeps_as_much_and_recomputes_more_is_dominated(policies: list[SweptVariant]) -> None:
    front = pareto_front([Swept(name="policy", values=POLICIES)], policies)
    names = next(number for number, point in enumerate(policies) if point.settings["policy"] == "names")
    assert names not in front.on_front


def test_memory_decides_whether_it_fits(tmp_path: Path) -> None:
    trace = _trace(tmp_path, "attention-naive-scan-small-none")
    target = trace.target
    assert target is not None
    peak = evaluate_trace(trace, [_said()], {}).peak_bytes
    assert peak is not None
    for memory, state in ((peak, "fits"), (peak - 1, "does not fit"), (None, "compiled")):
        trace = replace(trace, target=replace(target, memory_bytes=memory))
        assert evaluate_trace(trace, [_said()], {}).state == state


def test_a_step_is_the_longest_program_and_those_called_as_often(tmp_path: Path) -> None:
    step = _trace(tmp_path, "attention-naive-scan-small-none").hlo[0]
    small = _trace(tmp_path, "attention-blocked-scan-small-none")
    other = small.hlo[0]
    both = [replace(step, name="jit_step"), replace(other, name="jit_other")]
    small = replace(small, hlo=tuple(both))

    def programs(step_calls: int, other_calls: int) -> tuple[str, ...]:
        said = [
            CompiledProgram(file="programs/00.jit_step.hlo.pb", name="jit_step", calls=step_calls),
            CompiledProgram(file="programs/01.jit_other.hlo.pb", name="jit_other", calls=other_calls),
        ]
        return evaluate_trace(small, said, {}).programs

    longest = programs(1, 1)
    assert len(longest) == 1
    assert set(programs(3, 3)) == {"jit_step", "jit_other"}
    assert programs(3, 1) == programs(3, 2)
    assert len(programs(3, 1)) == 1


def test_what_cannot_be_judged_says_why(tmp_path: Path) -> None:
    trace = _trace(tmp_path, "attention-naive-scan-small-none")
    trace = replace(trace, target=parse_target("v5e"))
    point = evaluate_trace(trace, [_said()], {})
    assert point.step_low_ns is None
    assert "compiled for GPU" in point.reason
    trace = replace(trace, target=None)
    assert evaluate_trace(trace, [_said()], {}).state == "failed"
    trace = replace(trace, target=parse_target("h100"), hlo=())
    nothing = evaluate_trace(trace, [], {})
    assert (nothing.state, nothing.judged) == ("failed", False)
    missing = evaluate_variant(tmp_path / "nowhere", {"a": "b"})
    assert (missing.state, missing.settings) == ("failed", {"a": "b"})


@pytest.mark.parametrize(
    ("said", "refused", "used"),
    [
        ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
         "Used 21.30G of 15.75G hbm. Exceeded hbm capacity by 5.55G.", True, round(21.30 * 2**30)),
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (32.00G) exceeds "
         "available HBM (15.75G).", True, None),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating", False, None),
        ("INTERNAL: the compiler is unhappy", False, None),
    ],
)  # fmt: skip
def test_a_compiler_that_refuses_for_memory(said: str, refused: bool, used: int | None) -> None:
    assert exceeds_memory(said) is refused
    assert required_bytes(said) == used


GIB = 1 << 30


def step(peak: int) -> StepMemory:
    return StepMemory(peak_bytes=peak, requested_bytes=peak, start_bytes=0, given_bytes=7, phase="backward")


MEMORY = PlanMemory(eager=step(90 * GIB), planned=step(60 * GIB))


def test_a_program_that_compiles_is_judged_by_its_planned_step(tmp_path: Path) -> None:
    point = evaluate_trace(trace_of(tmp_path, plan(graph(kernel()), memory=MEMORY)), (), {"seq": "1"})
    assert (point.state, point.peak_bytes, point.inputs) == ("fits", 60 * GIB, (7, 0))
    assert point.programs == ("compiled step",)


def test_one_that_compiles_nothing_by_its_eager_step(tmp_path: Path) -> None:
    held = plan(graph(kernel()), memory=MEMORY, compiled_by="perfscope")
    point = evaluate_trace(trace_of(tmp_path, held), (), {})
    assert (point.state, point.peak_bytes) == ("does not fit", 90 * GIB)
    assert point.step_low_ns is None  # no ops were kept with this plan
    assert "cannot be modelled" in point.reason


def test_a_plan_of_an_earlier_perfscope_is_not_held_against_others(tmp_path: Path) -> None:
    point = evaluate_trace(trace_of(tmp_path, plan(graph(kernel()))), (), {})
    assert (point.state, point.judged, point.peak_bytes) == ("compiled", False, None)
    assert "unknown" in point.reason


def test_a_program_that_failed_is_a_failed_variant(tmp_path: Path) -> None:
    held = plan(graph(kernel()), memory=MEMORY, failure="ValueError at train.py:3: no", complete=False)
    point = evaluate_trace(trace_of(tmp_path, held), (), {})
    assert point.state == "failed"
    assert "train.py:3" in point.reason
