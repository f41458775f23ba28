"""Compiled programs that were handed in together: one trace, each program once, nothing that is counted lost."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfscope.analyzers.load import load_one, load_path
from perfscope.analyzers.readers import hlo_text
from perfscope.analyzers.readers._program import join_programs
from perfscope.analyzers.trace import Source, Trace
from perfscope.profiler.errors import DataError

BODY = "\n\nENTRY %main (p0: f32[8]) -> f32[8] {\n  %p0 = f32[8]{0} parameter(0)\n  ROOT %r = f32[8]{0} OP(%p0)\n}\n"


def program(path: Path, name: str = "jit_step", op: str = "negate", *, scheduled: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"HloModule {name}, is_scheduled={str(scheduled).lower()}{BODY.replace('OP', op)}"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_a_folder_of_programs_is_one_source(tmp_path: Path) -> None:
    files = [program(tmp_path / "a.txt"), program(tmp_path / "deep" / "b.hlo.txt.gz", op="exponential")]
    trace = load_one(tmp_path)
    assert (trace.source.path, trace.source.format, trace.source.rank) == (str(tmp_path), "hlo_text", None)
    assert trace.source.events_read == sum(load_one(file).source.events_read for file in files) == 4
    assert trace.source.programs == 2
    assert [module.source for module in trace.hlo] == [str(file) for file in files]
    assert trace.source.notes == (
        "these are 2 compiled programs, no recording of a run: every number is modelled or structural",
    )


def test_a_damaged_program_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    program(tmp_path / "a.txt")
    program(tmp_path / "b.txt", op="tanh")
    (tmp_path / "c.txt").write_text("HloModule jit_cut, is_scheduled=true\n\nENTRY %main () -> f32[] {\n")
    loaded = load_path(tmp_path)
    (trace,) = loaded.traces
    assert trace.source.programs == 2
    assert [(Path(one.path).name, one.broken) for one in loaded.skipped] == [("c.txt", True)]
    assert trace.source.notes[-1].startswith("c.txt was not read: cut off")


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("HloModule jit_cut, is_scheduled=true\n\nENTRY %main () -> f32[] {\n")
    with pytest.raises(DataError, match=r"no readable trace: c\.txt"):
        load_one(tmp_path)


def test_what_a_dump_wrote_twice_is_one_program(tmp_path: Path) -> None:
    stem = "module_0007.jit_step"
    program(tmp_path / f"{stem}.before_optimizations.txt", scheduled=False)
    program(tmp_path / f"{stem}.sm_9.0_gpu_after_optimizations.txt")
    program(tmp_path / f"{stem}.sm_9.0_gpu_after_optimizations.copy.txt")
    program(tmp_path / "module_0008.jit_step.before_optimizations.txt", op="tanh", scheduled=False)
    trace = load_one(tmp_path)
    assert [Path(module.source).name for module in trace.hlo] == [
        f"{stem}.sm_9.0_gpu_after_optimizations.copy.txt",  # the first of the two
        "module_0008.jit_step.before_optimizations.txt",
    ]
    assert trace.source.notes[1:] == (
        "jit_step is the program before XLA optimized it: what XLA fuses is not fused in it yet",
        "left out, for the optimized ones are there: 1 from before XLA optimized them",
    )


def test_the_same_program_in_two_folders_is_two(tmp_path: Path) -> None:
    program(tmp_path / "one" / "a.txt")
    program(tmp_path / "two" / "a.txt")
    assert load_one(tmp_path).source.programs == 2


def test_notes_of_the_files_stay(tmp_path: Path) -> None:
    traces = [hlo_text.read(program(tmp_path / name, op=op)) for name, op in (("a", "tanh"), ("b", "negate"))]
    first = traces[0].source
    odd = Trace(
        source=Source(path=first.path, format=first.format, rank=None, events_read=2, events_unplaced=0,
                      notes=("XLA's reasons are left out: cut off",), programs=1),
        strings=[], rows={}, recorded=frozenset({"hlo"}), hlo=traces[0].hlo,
    )  # fmt: skip
    assert join_programs([odd, traces[1]], "here").source.notes[-1] == "XLA's reasons are left out: cut off"


def test_beside_a_recording_programs_stay_what_they_were(tmp_path: Path) -> None:
    program(tmp_path / "a.txt")
    program(tmp_path / "b.txt", op="tanh")
    (tmp_path / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": '
                                         '"aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}]}')  # fmt: skip
    assert sorted(trace.source.format for trace in load_path(tmp_path).traces) == ["hlo_text", "hlo_text", "kineto"]
