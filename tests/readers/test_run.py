"""Runs as traces: the passes become one trace per process, and missing or damaged files are reported."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.ranks.sets import rank_sets
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.readers.run import reader as reader
from perfscope.analyzers.readers.run.memory import attach_snapshot, mark_failed
from perfscope.analyzers.readers.run.reader import why_no_step
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.analyzers.registry import load_rule
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Capture, Process, Run, dump
from perfscope.model.errors import DataError
from perfscope.model.trace import TABLES, Rows, Trace
from perfscope.model.trace import TraceBuilder as BuilderOfModel
from perfscope.model.trace.tables import MemoryAction
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY
from tests.readers.test_kineto import events, text
from tests.readers.torch_log.logs import LogText
from tests.readers.wire import SpaceWriter

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


def read_only_process(folder: Path) -> Trace:
    (trace,) = reader.read(folder)
    trace.check()
    return trace


def test_times_come_from_the_light_pass_and_sites_from_the_other(tmp_path: Path) -> None:
    trace = read_only_process(make(tmp_path / "run", PROCESS))
    assert trace.detail is not None
    assert trace.detail.rows["kernels"].nbytes == trace.rows["kernels"].nbytes
    assert trace.step_times_ns == (50_000, 60_000, 55_000)
    assert trace.source.format == "run"
    # the launcher has one process; the recording has its rank in the job
    assert (trace.source.rank, trace.source.world_size) == (3, 8)
    assert trace.source.events_read == 2 * len(events())
    assert "structure pass: compiled program" in trace.source.notes
    assert any("1.65 times as long" in note for note in trace.source.notes)


def test_a_run_that_watched_and_compiled_nothing_is_told_from_one_that_did_not_watch(tmp_path: Path) -> None:
    assert "compile_log" not in read_only_process(make(tmp_path / "old", PROCESS)).recorded
    trace = read_only_process(make(tmp_path / "run", replace(PROCESS, torch_compilations=0)))
    assert "compile_log" in trace.recorded
    assert judge(load_rule("graph_break"), trace).reason == "nothing was compiled"
    assert (
        "compile_log" not in read_only_process(make(tmp_path / "lost", replace(PROCESS, torch_compilations=3))).recorded
    )


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
    trace = read_only_process(folder)
    assert trace.compile_log is not None
    assert any("1.65 times as long as steps without a profiler, with 30.0 us of compiling in them; " in note
               for note in trace.source.notes)  # fmt: skip


def test_ranks_are_named_where_there_are_several(tmp_path: Path) -> None:
    assert read_only_process(make(tmp_path / "run", replace(PROCESS, world_size=8))).source.rank == 0


def test_a_run_that_was_killed_opens_and_says_so(tmp_path: Path) -> None:
    process = replace(PROCESS, captures=(captured("detail", DETAIL),))
    trace = read_only_process(make(tmp_path / "run", process, state="killed", exit_code=None))
    assert trace.detail is None
    assert "the run is killed: the captures up to then are shown" in trace.source.notes
    assert any("no timing pass" in note for note in trace.source.notes)


def test_a_damaged_artifact_costs_itself(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", PROCESS)
    whole = (folder / DETAIL).read_bytes()
    (folder / DETAIL).write_bytes(whole[: len(whole) // 2])
    trace = read_only_process(folder)
    assert trace.detail is None
    assert any(note.startswith("detail pass is corrupt") for note in trace.source.notes)


def test_an_artifact_that_is_not_here_is_not_called_corrupt(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", PROCESS)
    (folder / DETAIL).unlink()
    trace = read_only_process(folder)
    assert f"detail pass was recorded, and its file {DETAIL} is not in this folder" in trace.source.notes
    assert not any("corrupt" in note for note in trace.source.notes)


def test_an_empty_run_says_why(tmp_path: Path) -> None:
    nothing = replace(PROCESS, captures=(captured("timing", None, "the program ended after step 1"),))
    with pytest.raises(DataError, match=r"run: nothing was captured: the program ended after step 1"):
        reader.read(make(tmp_path / "run", nothing))


def test_a_run_in_progress_is_not_said_to_have_ended(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", replace(PROCESS, captures=()), state="running", exit_code=None)
    with run_folders.alive(folder), pytest.raises(DataError, match=r"nothing was captured yet: the run is in progress"):
        reader.read(folder)
    with pytest.raises(DataError, match=r"nothing was captured: the program ended"):
        reader.read(folder)


def test_a_run_that_found_no_steps_says_once_that_nothing_was_captured(tmp_path: Path) -> None:
    nothing = replace(PROCESS, captures=())
    folder = make(tmp_path / "run", nothing, notes=("nothing was captured: no steps were found",))
    with pytest.raises(DataError, match=r"run: nothing was captured: no steps were found"):
        reader.read(folder)


def test_a_recorded_run_gives_trace_detail_and_graph() -> None:
    (trace,) = load_all(GRAPH)
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


def test_what_is_read_behind_the_last_step_is_in_no_step(tmp_path: Path) -> None:
    """Where calls are the steps, the one that never ends holds what the program reads at its end."""
    folder = jax_run(tmp_path / "run", reads=True)
    head, *reads = [json.loads(line) for line in (folder / SYNCS).read_text().splitlines()]
    records = [head | {"records": 3}, *reads, reads[-1] | {"step": 2}]
    (folder / SYNCS).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert [read.step for read in read_only_process(folder).host_reads] == [0, 1, None]


def test_dispatch_is_no_step_time_and_the_slowdown_is_of_work_against_the_window(tmp_path: Path) -> None:
    trace = read_only_process(jax_run(tmp_path / "run", reads=False, window_ns=4 * 50_000, window_steps=4))
    assert trace.step_times_ns == ()
    assert (trace.window_ns, trace.window_steps) == (200_000, 4)
    notes = trace.source.notes
    assert any(note.startswith("no step waits for its work: a traced step is the time from the end") for note in notes)
    assert any("2.00 times as long" in note for note in notes), "200 us of two steps, against 50 us each"
    assert not any("no step time without a profiler" in note for note in notes)


def test_a_program_too_short_for_a_window_says_so(tmp_path: Path) -> None:
    trace = read_only_process(jax_run(tmp_path / "run", reads=False))
    assert (trace.step_times_ns, trace.window_ns) == ((), None)
    assert any(note.startswith("no step time without a profiler: it takes 4 steps") for note in trace.source.notes)
    assert not any("times as long" in note for note in trace.source.notes), "there is nothing like it to compare with"


def test_steps_that_read_keep_the_hosts_times(tmp_path: Path) -> None:
    trace = read_only_process(jax_run(tmp_path / "run", reads=True, window_ns=44_000, window_steps=4))
    assert trace.step_times_ns == (10_000, 12_000)
    notes = trace.source.notes
    assert any("9.55 times as long" in note for note in notes), "105 us on the host against 11 us"
    assert not any("no step waits" in note for note in notes)


def test_compilations_in_the_window_are_said(tmp_path: Path) -> None:
    more = {"window_ns": 200_000, "window_steps": 4, "window_compilations": 4}
    trace = read_only_process(jax_run(tmp_path / "run", reads=False, **more))
    assert any(note.startswith("4 compilations are in the 4 steps") for note in trace.source.notes)


def test_the_only_process_of_a_run_is_no_rank_where_the_recording_tells_none(tmp_path: Path) -> None:
    for head in ({"distributedInfo": None}, {"distributedInfo": {"rank": 0, "world_size": 1, "backend": "gloo"}}):
        folder = make(tmp_path / f"run{len(list(tmp_path.iterdir()))}", PROCESS)
        (folder / TIMING).write_bytes(gzip.compress(text(events(), **head).encode()))
        assert read_only_process(folder).source.rank is None


def test_two_run_directories_of_one_job_are_joined(tmp_path: Path) -> None:
    for rank in range(2):
        folder = make(tmp_path / f"task{rank}", PROCESS)
        distributed = {"rank": rank, "world_size": 2, "backend": "nccl"}
        (folder / TIMING).write_bytes(gzip.compress(text(events(), distributedInfo=distributed).encode()))
    (found,) = rank_sets([*load_all(tmp_path / "task0"), *load_all(tmp_path / "task1")])
    assert found.job.ranks == (0, 1)
    assert len(found.matching.matched) == 2


TORCH = Process(rank=0, directory="rank00000", steps_seen=4, captures=(captured("timing", TIMING),))


def run_of(**options: Any) -> Run:
    return Run(id="x", name="x", created_utc="2026-01-01T00:00:00", command=("x",), state="finished", options=options)


def structure(reason: str | None) -> Process:
    missing = Capture(pass_name="structure", tool="op_graph", state="missing", reason=reason)
    return Process(rank=0, directory="rank00000", steps_seen=4, captures=(captured("timing", TIMING), missing))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": "light"}, "recorded with --level light. It took 4 steps; perfscope run at its default level"),
        ({"level": "light", "whole": True}, "recorded with --whole and --level light."),
        ({"level": "deep", "capture": "nsys"}, "recorded with --capture nsys."),
        ({"times_only": True}, "recorded with nothing but step times."),
    ],
)
def test_options_that_leave_it_out(options: dict[str, Any], said: str) -> None:
    assert said in why_no_step(run_of(**options), TORCH)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("the program ended before this pass began", "step: the program ended before this pass began. It took 4"),
        (None, "no op graph of a step: it is missing"),
    ],
)
def test_what_stopped_it(reason: str | None, said: str) -> None:
    assert said in why_no_step(run_of(level="default"), structure(reason))


def test_an_option_of_a_stranger_is_not_repeated() -> None:
    said = why_no_step(run_of(level="\x1b[31m", capture="<script>"), TORCH)
    assert "\x1b" not in said
    assert "<script>" not in said
    assert "it has no structure pass" in said


@pytest.mark.parametrize(
    ("artifact", "reason", "said"),
    [
        (None, "no compiled program was alive", "has no compiled XLA program: no compiled program was alive. Put the"),
        ("rank00000/hlo", None, "has no compiled XLA program: none ran in the traced steps"),
    ],
)
def test_jax(artifact: str | None, reason: str | None, said: str) -> None:
    state: Any = "missing" if artifact is None else "recorded"
    hlo = Capture(pass_name="hlo", tool="jax_hlo", state=state, reason=reason, artifact=artifact)
    process = Process(rank=0, directory="rank00000", captures=(hlo,))
    assert said in why_no_step(run_of(level="default"), process)
    assert "jax.jit" in why_no_step(run_of(level="default"), process)


def test_a_run_that_has_one_is_not_asked(tmp_path: Path) -> None:
    bare = make(tmp_path / "bare", Process(rank=0, directory="rank00000", captures=(captured("detail", DETAIL),)))
    assert read_only_process(bare).why_no_step is not None
    assert read_only_process(REPOSITORY / "fixtures" / "cpu-attention-sdpa").why_no_step is None


FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SNAPSHOT = "torch_mem/assignment2-systems__tiny.pickle.gz"


def with_host_event(on_device: bool = False) -> Trace:
    trace = TraceBuilder().build()
    memory = Rows(
        TABLES["memory"],
        {
            "time_ns": np.array([5, 7]),
            "address": np.array([64, 128], np.uint64),
            "bytes": [16, 32],
            "on_device": [False, on_device],
            "action": [MemoryAction.ALLOCATE, MemoryAction.ALLOCATE],
            **{name: np.array([-1, -1]) for name in ("thread", "op")},
        },
    )
    return msgspec.structs.replace(trace, rows={**trace.rows, "memory": memory})


def attached(trace: Trace, snapshot: Trace) -> Trace:
    builder = BuilderOfModel.of(trace)
    attach_snapshot(builder, snapshot)
    return builder.build()


@pytest.mark.corpus
def test_the_allocators_tables_replace_the_profilers_events_of_the_device(corpus: Any) -> None:
    snapshot = torch_memory_reader.read(corpus / SNAPSHOT)
    trace = attached(with_host_event(on_device=True), snapshot)
    assert {"memory", "memory_state"} <= trace.recorded
    for name in ("frames", "segments", "held"):
        assert len(trace.rows[name]) == len(snapshot.rows[name])
    assert trace.rows["held"]["bytes"].sum() == snapshot.rows["held"]["bytes"].sum()
    memory = trace.rows["memory"]
    assert len(memory) == len(snapshot.rows["memory"]) + 1, "the host's event stays, the device's is the allocator's"
    assert (np.diff(memory["time_ns"]) >= 0).all()
    files = trace.rows["frames"]["file"]
    theirs = snapshot.rows["frames"]["file"]
    assert [trace.text(code) for code in files[:50]] == [snapshot.text(code) for code in theirs[:50]]
    assert (memory["op"] == -1).all()


@pytest.mark.corpus
def test_events_without_times_are_not_mixed_with_those_that_have_them(corpus: Any) -> None:
    snapshot = torch_memory_reader.read(corpus / SNAPSHOT)
    snapshot = msgspec.structs.replace(
        snapshot,
        source=type(snapshot.source)(
            path="x", format="torch_memory", rank=None, events_read=1, events_unplaced=0, events_only=True
        ),
    )
    trace = attached(with_host_event(), snapshot)
    assert trace.rows["memory"]["bytes"].tolist() == [16, 32]
    assert len(trace.rows["held"])


def a_run(folder: Path, corpus: Path, *passes: str) -> Path:
    """A recording of ours with snapshots added, as a GPU's run has them."""
    shutil.copytree(FIXTURES / "cpu-attention-sdpa", folder)
    manifest = json.loads((folder / "rank00000" / "process.json").read_text())
    for name in passes:
        shutil.copyfile(corpus / SNAPSHOT, folder / "rank00000" / f"{name}.pickle.gz")
        artifact = f"rank00000/{name}.pickle.gz"
        manifest["captures"].append({"pass": name, "tool": "torch_memory", "state": "recorded", "artifact": artifact})
    (folder / "rank00000" / "process.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.corpus
def test_a_run_carries_it_in_its_detail(tmp_path: Path, corpus: Any) -> None:
    (trace,) = load_all(a_run(tmp_path / "run", corpus, "memory"))
    assert trace.detail is not None
    assert "memory_state" in trace.detail.recorded
    assert "memory_state" not in trace.recorded
    assert len(trace.detail.rows["segments"])


@pytest.mark.corpus
def test_a_failed_allocation_is_a_trace_of_its_own(tmp_path: Path, corpus: Any) -> None:
    run, failed = load_all(a_run(tmp_path / "run", corpus, "out_of_memory"))
    assert run.source.format == "run"
    assert failed.source.format == "torch_memory"
    assert failed.source.path.endswith("out_of_memory.pickle.gz")
    assert "memory_state" in failed.recorded
    assert [timeline.out_of_memory != () for timeline in failed.fact(memory_timelines)] == [True]
    assert judge(load_rule("oom_near"), failed).status == "flagged"


@pytest.mark.corpus
def test_a_failed_allocation_without_a_history(corpus: Any) -> None:
    """The state alone, as it is written where memory runs out outside of the detail pass."""
    snapshot = torch_memory_reader.read(corpus / "torch_mem" / "LLM-inference__oom_nohistory.pickle.gz")
    assert judge(load_rule("oom_near"), snapshot).status == "abstained"
    again = torch_memory_reader.read(corpus / "torch_mem" / "LLM-inference__oom_nohistory.pickle.gz")
    again = mark_failed(again)
    (finding,) = judge(load_rule("oom_near"), again).findings
    assert finding.severity == "high"
    assert "ran out of memory" in finding.title
    assert "11.0 GiB were in use, 11.0 GiB reserved" in finding.detail
    # all but 4 MiB of what is reserved is in use
    assert judge(load_rule("memory_fragmentation"), again).status == "clean"


@pytest.mark.corpus
def test_a_damaged_snapshot_is_said_and_the_rest_is_read(tmp_path: Path, corpus: Any) -> None:
    folder = a_run(tmp_path / "run", corpus, "memory")
    damaged = folder / "rank00000" / "memory.pickle.gz"
    damaged.write_bytes(damaged.read_bytes()[:500])
    (trace,) = load_all(folder)
    assert any("memory pass is corrupt" in note for note in trace.source.notes)
    assert trace.detail is not None
