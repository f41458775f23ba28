from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers import estimate_section as section_module
from perfscope.analyzers.estimate_section import NO_ESTIMATE, estimate_section
from perfscope.analyzers.trace import Trace
from perfscope.profiler.aot.compiled_file import Compiled, CompiledProgram, TargetSaid, dump
from tests.analyzers.estimate.build import target
from tests.analyzers.estimate.test_calibrate import chain
from tests.hlo_build import hlo_trace, recorded_trace


def compiled(*names: str, count: int = 2) -> Trace:
    """Programs that were compiled for an H100."""
    trace = hlo_trace(*(chain(count, name=name) for name in names))
    trace.target = target("H100 SXM")
    return trace


def test_programs_without_a_target_have_no_part_in_it() -> None:
    assert estimate_section([hlo_trace(chain(2))]) == NO_ESTIMATE
    assert estimate_section([]) == NO_ESTIMATE


def test_rows_are_bounded_and_what_is_left_out_is_counted() -> None:
    found = estimate_section([compiled("jit_step", count=30)])
    (program,) = found.programs
    assert program.launched == 30
    assert len(program.estimate.rows) == section_module.MOST_ROWS
    assert program.rows_left == 10
    assert program.estimate.step_ns.low > 0


def test_programs_are_bounded_the_longest_first() -> None:
    trace = hlo_trace(*(chain(number + 1, name=f"jit_{number}") for number in range(10)))
    trace.target = target("H100 SXM")
    found = estimate_section([trace])
    assert [one.label for one in found.programs] == [f"jit_{number}" for number in range(9, 1, -1)]
    assert found.programs_left == 2


def test_a_recording_beside_it_is_held_against_it() -> None:
    recording = recorded_trace(chain(2), ops=[("n0", 0, 50), ("n1", 50, 100)], runs=[1, 1])
    (program,) = estimate_section([compiled("jit_step"), recording]).programs
    assert program.calibration is not None
    assert program.calibration.run.step_ns == 100_000
    elsewhere = recorded_trace(chain(2), ops=[("n0", 0, 50)], runs=[1], device="NVIDIA A100-SXM4-80GB")
    (alone,) = estimate_section([compiled("jit_step"), elsewhere]).programs
    assert alone.calibration is None


def test_one_that_breaks_is_said_and_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = section_module.estimate

    def breaks(module, target, **more):  # type: ignore[no-untyped-def]
        if module.name == "jit_bad":
            raise RuntimeError("no luck")
        return whole(module, target, **more)

    monkeypatch.setattr(section_module, "estimate", breaks)
    found = estimate_section([compiled("jit_bad", "jit_good")])
    assert [one.label for one in found.programs] == ["jit_good"]
    assert found.problems == ("the time of jit_bad could not be modelled: RuntimeError: no luck",)


def test_a_step_of_several_programs_by_their_calls(tmp_path: Path) -> None:
    modules = [chain(3, name="jit_step"), chain(2, name="jit_half"), chain(50, name="jit_init")]
    files = [f"programs/{number}.hlo.pb" for number in range(3)]
    for module, file in zip(modules, files, strict=True):
        object.__setattr__(module, "source", str(tmp_path / file))
    trace = hlo_trace(*modules)
    trace.target = target("H100 SXM")
    object.__setattr__(trace.source, "path", str(tmp_path))
    manifest = Compiled(
        framework="jax",
        created_utc="2026-01-01T00:00:00Z",
        name="x",
        command=("x.py",),
        target=TargetSaid(asked="h100", device="H100 SXM", platform="gpu", count=1, topology=None, memory_bytes=None),
        programs=tuple(
            CompiledProgram(file=file, name=module.name, calls=calls)
            for file, module, calls in zip(files, modules, (4, 8, 1), strict=True)
        ),
    )
    (tmp_path / "compile.json").write_bytes(dump(manifest))
    found = estimate_section([trace])
    assert found.step is not None
    assert found.step.steps == 4
    assert found.step.calls == (1.0, 2.0, None)
    times = {one.label: one.estimate.step_ns for one in found.programs}
    assert found.step.time.low == times["jit_step"].low + 2 * times["jit_half"].low
