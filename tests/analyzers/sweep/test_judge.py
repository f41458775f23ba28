"""A variant's point from compiled programs: those of the fixtures, as a run folder would hold them."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.analyzers.load import load_one
from perfscope.analyzers.sweep.front import Swept, front_of
from perfscope.analyzers.sweep.judge import judged, judged_trace, too_much, used_bytes
from perfscope.analyzers.sweep.point import Point
from perfscope.analyzers.trace import Trace
from perfscope.profiler.aot.compiled_file import CompiledProgram

PROGRAMS = Path(__file__).parents[3] / "fixtures" / "h100-programs"
POLICIES = ("none", "dots", "full", "names")


def _trace(folder: Path, name: str, target: str = "h100", memory: str | None = None) -> Trace:
    path = folder / f"{name}.hlo.pb"
    path.write_bytes(lzma.decompress((PROGRAMS / f"{name}.hlo.pb.xz").read_bytes()))
    trace = load_one(path)
    trace.target = parse_target(target, memory)
    return trace


def _said(**more: int) -> CompiledProgram:
    return CompiledProgram(file="programs/00.jit_step.hlo.pb", name="jit_step", **more)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Point]:
    folder = tmp_path_factory.mktemp("programs")
    return [
        judged_trace(
            _trace(folder, f"attention-naive-scan-small-{policy}"),
            [_said(argument_bytes=8, output_bytes=8)],
            (("policy", policy),),
        )
        for policy in POLICIES
    ]


def test_points_of_the_fixtures(policies: list[Point]) -> None:
    assert {point.state for point in policies} == {"fits"}
    peaks = {point.value("policy"): point.peak_bytes for point in policies}
    # what XLA planned for it: provenance.toml of the fixtures
    text = (PROGRAMS / "provenance.toml").read_text()
    for policy, peak in peaks.items():
        part = text.split(f'"attention-naive-scan-small-{policy}.hlo.pb.xz"')[1].split("peak_bytes = ")[1]
        assert peak == pytest.approx(int(part.split("\n")[0]), rel=0.01)
    assert peaks["none"] is not None
    assert peaks["full"] is not None
    assert peaks["none"] > 2 * peaks["full"]
    assert all(point.step is not None and 0 < point.step.low < point.step.high for point in policies)
    assert all(point.programs == ("jit_step",) and point.inputs == (8, 8) for point in policies)


def test_the_policy_that_keeps_as_much_and_recomputes_more_is_dominated(policies: list[Point]) -> None:
    front = front_of([Swept(name="policy", values=POLICIES)], policies)
    names = next(number for number, point in enumerate(policies) if point.value("policy") == "names")
    none = next(number for number, point in enumerate(policies) if point.value("policy") == "none")
    assert none not in front.on_front or names not in front.on_front
    assert names not in front.on_front


def test_memory_decides_whether_it_fits(tmp_path: Path) -> None:
    trace = _trace(tmp_path, "attention-naive-scan-small-none")
    target = trace.target
    assert target is not None
    peak = judged_trace(trace, [_said()], ()).peak_bytes
    assert peak is not None
    for memory, state in ((peak, "fits"), (peak - 1, "does not fit"), (None, "compiled")):
        trace.target = replace(target, memory_bytes=memory)
        assert judged_trace(trace, [_said()], ()).state == state


def test_a_step_is_the_longest_program_and_those_called_as_often(tmp_path: Path) -> None:
    step = _trace(tmp_path, "attention-naive-scan-small-none").hlo[0]
    small = _trace(tmp_path, "attention-blocked-scan-small-none")
    other = small.hlo[0]
    both = [replace(step, name="jit_step"), replace(other, name="jit_other")]
    small.hlo = tuple(both)

    def programs(step_calls: int, other_calls: int) -> tuple[str, ...]:
        said = [
            CompiledProgram(file="programs/00.jit_step.hlo.pb", name="jit_step", calls=step_calls),
            CompiledProgram(file="programs/01.jit_other.hlo.pb", name="jit_other", calls=other_calls),
        ]
        return judged_trace(small, said, ()).programs

    longest = programs(1, 1)
    assert len(longest) == 1
    assert set(programs(3, 3)) == {"jit_step", "jit_other"}
    assert programs(3, 1) == programs(3, 2)
    assert len(programs(3, 1)) == 1


def test_what_cannot_be_judged_says_why(tmp_path: Path) -> None:
    trace = _trace(tmp_path, "attention-naive-scan-small-none")
    trace.target = parse_target("v5e")
    point = judged_trace(trace, [_said()], ())
    assert point.step is None
    assert "compiled for GPU" in point.reason
    trace.target = None
    assert judged_trace(trace, [_said()], ()).state == "failed"
    trace.target, trace.hlo = parse_target("h100"), ()
    nothing = judged_trace(trace, [], ())
    assert (nothing.state, nothing.judged) == ("failed", False)
    missing = judged(tmp_path / "nowhere", (("a", "b"),))
    assert (missing.state, missing.settings) == ("failed", (("a", "b"),))


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
    assert too_much(said) is refused
    assert used_bytes(said) == used
