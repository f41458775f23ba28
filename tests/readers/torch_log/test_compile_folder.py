"""Data of a run on torch.compile besides its log: refusals and steps, also if the files are damaged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.readers.run import reader as reader
from perfscope.analyzers.readers.run.logs import _Mark, _offset_ns, read_compile
from perfscope.analyzers.readers.torch_log.fusion import read_fusion, with_kernels
from perfscope.model.compile_log import CompiledKernel, CompileLog, FusionRefusal, StepSpan
from perfscope.model.documents.run import FUSION_SCHEMA, Capture, Process, Run, dump
from perfscope.model.errors import DataError
from perfscope.model.trace import TABLES, Rows

HEAD = json.dumps({"schema": FUSION_SCHEMA, "torch": "2.x"})
REFUSAL = {"kind": "refusal", "compile_id": "0/0", "direction": "forward", "first": "op0", "second": "op1"}
LOG = (
    'V1120 21:23:01.014000 7 torch/_dynamo/x.py:1] {"dynamo_start": {"stack": []}, '
    '"frame_id": 0, "frame_compile_id": 0, "attempt": 0}\n'
)


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines))
    return path


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    good = json.dumps({**REFUSAL, "reason": "far", "times": 2, "unheard_of": [1]})
    wrong = json.dumps({**REFUSAL, "direction": "sideways"})
    graph = json.dumps({"kind": "graph", "left_out": 4})
    other = json.dumps({"kind": "later"})
    found = read_fusion(write(tmp_path, "fusion.jsonl", HEAD, graph, good, wrong, other, "\x00[", good[:30]))
    assert (found.damaged, found.left_out) == (3, 4)
    (refusal,) = found.refusals
    assert (refusal.reason, refusal.times) == ("far", 2)


@pytest.mark.parametrize("head", ["", "[]", "{", '{"schema": "perfscope.fusion/9"}', "\xff"])
def test_another_schema_is_refused(tmp_path: Path, head: str) -> None:
    with pytest.raises(DataError, match=r"fusion\.jsonl: [^\n]+$"):
        read_fusion(write(tmp_path, "fusion.jsonl", head))


def kernel(name: str, *nodes: str, compile_id: str = "0/0") -> CompiledKernel:
    return CompiledKernel(name=name, backend="cpp", compile_id=compile_id, direction="forward", nodes=nodes)


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ([kernel("one", "exp", "sub"), kernel("two", "exp")], "two"),  # a node may be computed in several kernels
        ([kernel("one", "exp"), kernel("two", "exp")], None),
        ([kernel("one", "exp"), kernel("one", "exp")], "one"),  # one kernel that is called twice
        ([kernel("one", "mul")], None),
        ([kernel("one", "exp", compile_id="0/1")], None),
        ([kernel("one")], None),
    ],
)
def test_the_kernel_of_a_side_is_the_one_that_computes_its_nodes(
    kernels: list[CompiledKernel], expected: str | None
) -> None:
    refusal = FusionRefusal(
        compile_id="0/0", direction="forward", first="op0", second="op1", reason="far", first_nodes=("exp",)
    )
    (found,) = with_kernels([refusal], kernels)
    assert found.first_kernel == expected
    assert found.second_kernel is None


def test_a_time_belongs_to_the_nearest_step() -> None:
    spans = (StepSpan(step=0, start_ns=100, end_ns=200), StepSpan(step=9, start_ns=900, end_ns=950))
    log = CompileLog(path="x", steps=spans)
    assert [log.step_at(at) for at in (50, 150, 260, 890, 925, 2000)] == [0, 0, 0, 9, 9, 9]
    assert CompileLog(path="x").step_at(150) is None


def steps(*starts: int) -> Rows:
    numbers = np.arange(len(starts), dtype=np.int64)
    columns: dict[str, Any] = {
        "number": numbers,
        "name": np.zeros_like(numbers),
        "start_ns": np.array(starts),
        "end_ns": np.array(starts) + 10,
    }
    return Rows(TABLES["steps"], columns)


def test_two_clocks_are_told_from_one() -> None:
    epoch = 1_795_209_781_000_000_000
    marks = tuple(_Mark(step=at, time_ns=epoch + at * 10**9) for at in range(3))
    near = [epoch + at * 10**9 + late for at, late in enumerate((65_000, 9_000, 7_000))]
    assert _offset_ns(marks, steps(*near)) == 0
    assert _offset_ns(marks, steps(*(at - epoch for at in near))) == 9_000 - epoch
    assert _offset_ns(marks, None) == _offset_ns((), steps(*near)) == 0


def test_only_the_log_itself_must_be_whole(tmp_path: Path) -> None:
    log = write(tmp_path, "torch_trace.log", LOG)
    write(tmp_path, "steps.json", "{")
    write(tmp_path, "fusion.jsonl", "{")
    found, notes = read_compile(log, None)
    assert len(found.compiles) == 1
    assert (found.steps, found.has_refusals) == ((), False)
    assert [note.partition(":")[0] for note in notes] == [
        "steps that compiled are unknown",
        "fusion decisions are corrupt",
    ]


@pytest.mark.parametrize(("problem", "graphs", "watched"), [(None, 2, True), (None, 0, False), ("no hook", 2, False)])
def test_no_refusal_is_told_from_nobody_looked(tmp_path: Path, problem: str | None, graphs: int, watched: bool) -> None:
    log = write(tmp_path, "torch_trace.log", LOG)
    said = {"schema": "perfscope.compile_steps/1", "scheduled_graphs": graphs, "fusion_problem": problem}
    write(tmp_path, "steps.json", json.dumps(said))
    found, notes = read_compile(log, None)
    assert (found.has_refusals, notes) == (watched, [])


def test_of_what_a_cache_held_no_refusal_is_known(tmp_path: Path) -> None:
    payload = '{"cache_state": "hit"}'
    said = {"artifact": {"name": "fx_graph_cache_hit", "encoding": "json"}, "frame_id": 0, "frame_compile_id": 0}
    said |= {"attempt": 0, "has_payload": hashlib.md5(payload.encode()).hexdigest()}
    held = f"{LOG.partition('{')[0]}{json.dumps(said)}\n\t{payload}\n"
    log = write(tmp_path, "torch_trace.log", LOG + held)
    write(tmp_path, "steps.json", json.dumps({"schema": "perfscope.compile_steps/1"}))
    found, (note,) = read_compile(log, None)
    assert not found.has_refusals
    assert note.startswith("inductor's caches held 1 of 1 compilations")


@pytest.mark.parametrize("damaged", [False, True])
def test_a_damaged_log_of_a_run_is_a_note(tmp_path: Path, damaged: bool) -> None:
    folder = tmp_path / "rank00000" / "compile"
    folder.mkdir(parents=True)
    write(folder, "torch_trace.log", LOG)
    (tmp_path / "rank00001").mkdir()
    write(tmp_path / "rank00001", "torch_trace.log", "\x00" if damaged else LOG)
    processes = tuple(
        Process(
            rank=rank,
            directory=f"rank{rank:05d}",
            captures=(Capture(pass_name="compile", tool="torch_compile", state="recorded", artifact=artifact),),
        )
        for rank, artifact in enumerate(("rank00000/compile/torch_trace.log", "rank00001/torch_trace.log"))
    )
    run = Run(id="x", name="x", created_utc="2026-01-01", command=("x",), state="finished", processes=processes)
    (tmp_path / "run.json").write_bytes(dump(run))
    traces = reader.read(tmp_path)
    assert [trace.source.rank for trace in traces] == [0] if damaged else [0, 1]
    assert all(trace.recorded == {"compile_log"} for trace in traces)
