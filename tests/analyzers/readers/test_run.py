"""Runs as traces: the passes become one trace a process, and what is missing or damaged is said."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.load import load
from perfscope.analyzers.ranks.sets import rank_sets
from perfscope.analyzers.readers import run as reader
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from perfscope.profiler import store
from perfscope.profiler.errors import DataError
from perfscope.profiler.run import Capture, Process, Run, dump
from tests.analyzers.readers.test_kineto import events, text
from tests.analyzers.readers.torch_logs import LogText
from tests.analyzers.readers.wire import SpaceWriter
from tests.conftest import REPOSITORY

GRAPH = REPOSITORY / "fixtures" / "cpu-moe-loop"
TIMING, DETAIL = "rank00000/timing.pt.trace.json.gz", "rank00000/detail.pt.trace.json.gz"


def captured(name: str, artifact: str | None, reason: str | None = None) -> Capture:
    state: Any = "missing" if artifact is None else "recorded"
    return Capture(pass_name=name, tool="torch_profiler", state=state, artifact=artifact, reason=reason)


def make(folder: Path, process: Process, **more: Any) -> Path:
    """A run directory whose artifacts are small Kineto files."""
    run = Run(
        id=folder.name, name="x", created_utc="2026-01-01T00:00:00", command=("x",), processes=(process,),
        **{"state": "finished", "exit_code": 0, **more},
    )  # fmt: skip
    (folder / "rank00000").mkdir(parents=True)
    (folder / "run.json").write_bytes(dump(run))
    for capture in process.captures:
        if capture.artifact is not None:
            (folder / capture.artifact).write_bytes(gzip.compress(text(events()).encode()))
    return folder


PROCESS = Process(
    rank=0,
    directory="rank00000",
    untraced_step_ns=(50_000, 60_000, 55_000),
    captures=(captured("timing", TIMING), captured("detail", DETAIL), captured("structure", None, "compiled program")),
)


def one(folder: Path) -> Trace:
    (trace,) = reader.read(folder)
    trace.check()
    return trace


def test_times_come_from_the_light_pass_and_sites_from_the_other(tmp_path: Path) -> None:
    trace = one(make(tmp_path / "run", PROCESS))
    assert trace.detail is not None
    assert trace.detail.rows["kernels"].nbytes == trace.rows["kernels"].nbytes
    assert trace.step_times_ns == (50_000, 60_000, 55_000)
    assert trace.source.format == "run"
    # the launcher knows of one process; the recording says which of a job's it is
    assert (trace.source.rank, trace.source.world_size) == (3, 8)
    assert trace.source.events_read == 2 * len(events())
    assert "structure pass: compiled program" in trace.source.notes
    assert any("1.65 times as long" in note for note in trace.source.notes)


def test_a_run_that_watched_and_compiled_nothing_is_told_from_one_that_did_not_watch(tmp_path: Path) -> None:
    assert "compile_log" not in one(make(tmp_path / "old", PROCESS)).recorded
    trace = one(make(tmp_path / "run", replace(PROCESS, torch_compilations=0)))
    assert "compile_log" in trace.recorded
    assert judge(load_rule("graph_break"), trace).reason == "nothing was compiled"
    assert "compile_log" not in one(make(tmp_path / "lost", replace(PROCESS, torch_compilations=3))).recorded


def test_compiling_in_the_traced_steps_is_no_cost_of_the_profiler(tmp_path: Path) -> None:
    logged = replace(captured("compile", "rank00000/compile/torch_trace.log"), tool="torch_compile")
    folder = make(tmp_path / "run", PROCESS)
    log = LogText(rank=0).at(0)
    log.epoch_us = 1_763_000_000_001_000.0  # where the first step begins
    log.event("dynamo", "B", 20).event("dynamo", "E", 50).event("dynamo", "B", 95).event("dynamo", "E", 97).metrics()
    (folder / "rank00000" / "compile").mkdir()
    log.write(folder / "rank00000" / "compile", "torch_trace.log")
    held = json.loads((folder / "run.json").read_text())
    held["processes"][0]["captures"].append(json.loads(json.dumps(asdict(logged))))
    (folder / "run.json").write_text(json.dumps(held))
    trace = one(folder)
    assert trace.compile_log is not None
    assert any("1.65 times as long as steps without a profiler, with 30.0 us of compiling in them; " in note
               for note in trace.source.notes)  # fmt: skip


def test_ranks_are_named_where_there_are_several(tmp_path: Path) -> None:
    assert one(make(tmp_path / "run", replace(PROCESS, world_size=8))).source.rank == 0


def test_a_run_that_was_killed_opens_and_says_so(tmp_path: Path) -> None:
    process = replace(PROCESS, captures=(captured("detail", DETAIL),))
    trace = one(make(tmp_path / "run", process, state="killed", exit_code=None))
    assert trace.detail is None
    assert "the run is killed: what had been captured by then is shown" in trace.source.notes
    assert any("no timing pass" in note for note in trace.source.notes)


def test_a_damaged_artifact_costs_itself(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", PROCESS)
    whole = (folder / DETAIL).read_bytes()
    (folder / DETAIL).write_bytes(whole[: len(whole) // 2])
    trace = one(folder)
    assert trace.detail is None
    assert any(note.startswith("detail pass is damaged") for note in trace.source.notes)


def test_an_empty_run_says_why(tmp_path: Path) -> None:
    nothing = replace(PROCESS, captures=(captured("timing", None, "the program ended after step 1"),))
    with pytest.raises(DataError, match=r"run: nothing was captured: the program ended after step 1"):
        reader.read(make(tmp_path / "run", nothing))


def test_a_run_in_progress_is_not_said_to_have_ended(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", replace(PROCESS, captures=()), state="running", exit_code=None)
    with store.alive(folder), pytest.raises(DataError, match=r"nothing was captured yet: the run is in progress"):
        reader.read(folder)
    with pytest.raises(DataError, match=r"nothing was captured: the program ended"):
        reader.read(folder)


def test_a_run_that_found_no_steps_says_once_that_nothing_was_captured(tmp_path: Path) -> None:
    nothing = replace(PROCESS, captures=())
    folder = make(tmp_path / "run", nothing, notes=("nothing was captured: no steps were found",))
    with pytest.raises(DataError, match=r"run: nothing was captured: no steps were found"):
        reader.read(folder)


def test_a_recorded_run_gives_trace_detail_and_graph() -> None:
    (trace,) = load(GRAPH)
    assert "op_graph" in trace.recorded
    assert trace.op_graph is not None
    assert trace.detail is not None
    assert trace.op_graph.ops
    manifest = json.loads((GRAPH / "run.json").read_text())
    assert trace.step_times_ns == tuple(manifest["processes"][0]["untraced_step_ns"])


XSPACE = "rank00000/timing.xplane.pb"
SYNCS = "rank00000/syncs.jsonl"


def jax_run(folder: Path, *, reads: bool, **more: Any) -> Path:
    """A run of two steps of 10 us on the host; their work takes 100 us each, waited for in the step or not."""
    us, wait = 1_000_000, 95 if reads else 0
    python: list[tuple[Any, ...]] = []
    pool: list[tuple[Any, ...]] = []
    for number in range(2):
        begin = number * (10 + wait)
        done = (begin + 5, begin + 100) if reads else (5 + 100 * number, 100 + 100 * number)
        stats = {"hlo_op": "dot.1", "hlo_module": "jit_step", "program_id": 1, "run_id": number, "device_ordinal": 0}
        python.append(("train", begin * us, (begin + 10 + wait) * us, {"step_num": number}))
        python.append(("PjitFunction(step)", (begin + 1) * us, (begin + 9) * us))
        pool.append(("dot.1", done[0] * us, done[1] * us, stats))
    captures = [Capture(pass_name="timing", tool="jax_profiler", state="recorded", artifact=XSPACE)]
    if reads:
        captures.append(Capture(pass_name="syncs", tool="jax_sync", state="recorded", artifact=SYNCS))
    process = Process(
        rank=0,
        directory="rank00000",
        steps_seen=2,
        untraced_step_ns=(10_000, 12_000),
        captures=tuple(captures),
        **more,
    )
    run = Run(id="x", name="x", created_utc="2026-01-01T00:00:00", command=("x",), processes=(process,),
              state="finished", exit_code=0)  # fmt: skip
    (folder / "rank00000").mkdir(parents=True)
    (folder / "run.json").write_bytes(dump(run))
    (folder / XSPACE).write_bytes(SpaceWriter().plane("/host:CPU", {"python": python, "pool": pool}).bytes())
    if reads:
        head = {"schema": "perfscope.jax_syncs/1", "records": 2, "dropped": 0}
        facts = {
            "call": "float",
            "begin_ns": 1,
            "duration_ns": 1,
            "ready": False,
            "bytes": 4,
            "traced": False,
            "main_thread": True,
        }
        lines = [head, *({**facts, "step": number} for number in range(2))]
        (folder / SYNCS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_dispatch_is_no_step_time_and_the_slowdown_is_of_work_against_the_window(tmp_path: Path) -> None:
    trace = one(jax_run(tmp_path / "run", reads=False, window_ns=4 * 50_000, window_steps=4))
    assert trace.step_times_ns == ()
    assert (trace.window_ns, trace.window_steps) == (200_000, 4)
    notes = trace.source.notes
    assert any(note.startswith("no step waits for its work: a traced step is the time from the end") for note in notes)
    assert any("2.00 times as long" in note for note in notes), "200 us of two steps, against 50 us each"
    assert not any("no step time without a profiler" in note for note in notes)


def test_a_program_too_short_for_a_window_says_so(tmp_path: Path) -> None:
    trace = one(jax_run(tmp_path / "run", reads=False))
    assert (trace.step_times_ns, trace.window_ns) == ((), None)
    assert any(note.startswith("no step time without a profiler: it takes 4 steps") for note in trace.source.notes)
    assert not any("times as long" in note for note in trace.source.notes), "there is nothing like it to compare with"


def test_steps_that_read_keep_the_hosts_times(tmp_path: Path) -> None:
    trace = one(jax_run(tmp_path / "run", reads=True, window_ns=44_000, window_steps=4))
    assert trace.step_times_ns == (10_000, 12_000)
    notes = trace.source.notes
    assert any("9.55 times as long" in note for note in notes), "105 us on the host against 11 us"
    assert not any("no step waits" in note for note in notes)


def test_compilations_in_the_window_are_said(tmp_path: Path) -> None:
    more = {"window_ns": 200_000, "window_steps": 4, "window_compilations": 4}
    trace = one(jax_run(tmp_path / "run", reads=False, **more))
    assert any(note.startswith("4 compilations are in the 4 steps") for note in trace.source.notes)


def test_the_only_process_of_a_run_is_no_rank_where_the_recording_tells_none(tmp_path: Path) -> None:
    for head in ({"distributedInfo": None}, {"distributedInfo": {"rank": 0, "world_size": 1, "backend": "gloo"}}):
        folder = make(tmp_path / f"run{len(list(tmp_path.iterdir()))}", PROCESS)
        (folder / TIMING).write_bytes(gzip.compress(text(events(), **head).encode()))
        assert one(folder).source.rank is None


def test_two_run_directories_of_one_job_are_joined(tmp_path: Path) -> None:
    for rank in range(2):
        folder = make(tmp_path / f"task{rank}", PROCESS)
        distributed = {"rank": rank, "world_size": 2, "backend": "nccl"}
        (folder / TIMING).write_bytes(gzip.compress(text(events(), distributedInfo=distributed).encode()))
    (found,) = rank_sets([*load(tmp_path / "task0"), *load(tmp_path / "task1")])
    assert found.job.ranks == (0, 1)
    assert len(found.matching.matched) == 2
