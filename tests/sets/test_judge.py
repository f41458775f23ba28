"""Judging a set by digests equals judging it with all tables in memory; broken, killed and odd files are reported."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.__main__ import run
from perfscope.__main__ import run as command
from perfscope.analyzers import judge as judging
from perfscope.analyzers.engine import Examined, analyze
from perfscope.analyzers.judge import JudgeTask, judge_paths
from perfscope.analyzers.readers.hlo import text as hlo_text
from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.readers.load import Task, TaskResult, load_path, load_paths, read_task
from perfscope.analyzers.readers.run.parts import RunPart, divide_run
from perfscope.analyzers.registry import rule_ids
from perfscope.dashboards.report import render
from perfscope.model.documents.run import Capture, Process, Run, dump
from perfscope.model.errors import DataError, UsageError, see
from perfscope.model.finding import Finding, Rule
from perfscope.model.trace import Trace
from tests.readers.nsys.test_files import make as nsys_run
from tests.readers.nsys.test_files import of_devices
from tests.readers.test_kineto import events, text
from tests.session.programs import LOOP, captured, write


@pytest.fixture
def megatron_files(corpus: Path, tmp_path: Path) -> Path:
    """Four of the eight ranks."""
    for file in sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_[0-3]*")):
        shutil.copy(file, tmp_path)
    return tmp_path


def set_report(paths: Sequence[Path], jobs: int) -> str:
    return render(judge_paths(paths, jobs=jobs).analysis, "json")


def in_memory(path: Path) -> str:
    loaded = load_path(path)
    return render(replace(analyze(loaded.traces), run=loaded.run), "json")


class KilledAtRankTwo(JudgeTask):
    """Sent to other processes, so it cannot be a local function."""

    def __call__(self, task: Task) -> TaskResult:
        if (task.name() == "rank00002") if isinstance(task, RunPart) else ("kineto_2" in task):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.judged(read_task(task))


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_folder_is_judged_as_in_memory(megatron_files: Path, jobs: int) -> None:
    assert set_report([megatron_files], jobs) == in_memory(megatron_files)


@pytest.mark.corpus
def test_traces_of_a_set_hold_little(megatron_files: Path) -> None:
    traces = judge_paths([megatron_files], jobs=1).loaded.traces
    assert not any(len(trace.rows["memory"]) for trace in traces)
    assert {len(trace.rows["kernels"]) for trace in traces} == {84}


@pytest.mark.slow
@pytest.mark.corpus
def test_damaged_and_other_files_are_said(megatron_files: Path) -> None:
    first = sorted(megatron_files.iterdir())[0]
    first.write_bytes(first.read_bytes()[:100_000])
    (megatron_files / "notes.txt").write_text("ranks 0 to 3")
    judged = judge_paths([megatron_files], jobs=2)
    assert {Path(one.path).name: one.broken for one in judged.loaded.skipped} == {first.name: True, "notes.txt": False}
    assert f"{first.name} was not read" in judged.analysis.sources[0].notes[-1]
    assert render(judged.analysis, "json") == in_memory(megatron_files)
    with pytest.raises(DataError, match=f"{first.name}: "):
        judge_paths(sorted(megatron_files.glob("*.gz")), jobs=2)


@pytest.mark.slow
@pytest.mark.corpus
def test_a_rank_whose_reader_is_killed_is_said(megatron_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "JudgeTask", KilledAtRankTwo)
    judged = judge_paths([megatron_files], jobs=2)
    (lost,) = judged.loaded.skipped
    assert (Path(lost.path).name, lost.broken) == ("astra-sim__megatron_kineto_2.json.gz", True)
    hint = see("recording too large")
    assert lost.reason == f"the process that read it was killed by signal 9, twice (out of memory?){hint}"
    assert [trace.source.rank for trace in judged.loaded.traces] == [0, 1, 3]
    assert judged.analysis.collectives.jobs[0].missing == (2, 4, 5, 6, 7)


@pytest.mark.slow
@pytest.mark.corpus
def test_programs_alone_are_still_one_trace(corpus: Path, tmp_path: Path) -> None:
    for name in ("xla__hlo_llama3_8b_cp_bf16_1x4.hlo.gz", "xla__hlo_llama3_8b_bf16_activation_offloading_1x8.hlo.gz"):
        shutil.copy(corpus / "hlo_text" / name, tmp_path)
    for jobs in (1, 2):
        judged = judge_paths([tmp_path], jobs=jobs)
        assert judged.loaded.traces[0].source.programs == 2
        assert render(judged.analysis, "json") == in_memory(tmp_path)
    named = sorted(tmp_path.iterdir())
    whole = load_paths(named)
    assert set_report(named, 2) == render(analyze(whole.traces), "json")


@pytest.mark.corpus
def test_programs_alone_are_read_and_judged_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("xla__hlo_llama3_8b_cp_bf16_1x4.hlo.gz", "xla__hlo_llama3_8b_bf16_activation_offloading_1x8.hlo.gz"):
        shutil.copy(corpus / "hlo_text" / name, tmp_path)
    files: list[str] = []
    judged: list[int | None] = []
    read, examine = hlo_text.read, judging.examine

    def counted(path: Path) -> Trace:
        files.append(path.name)
        return read(path)

    def watched(trace: Trace, rules: Sequence[Rule]) -> Examined:
        judged.append(trace.source.programs)
        return examine(trace, rules)

    monkeypatch.setattr(hlo_text, "read", counted)
    monkeypatch.setattr(judging, "examine", watched)
    judge_paths([tmp_path], jobs=1)
    assert files == sorted(file.name for file in tmp_path.iterdir())
    assert judged == [2]


@pytest.mark.corpus
def test_a_rule_of_others_compares_whole_traces(megatron_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def compare(traces: Sequence[Trace]) -> list[Finding]:
        seen.extend(len(trace.rows["kernels"]) for trace in traces)
        return []

    (rule,) = judging.chosen_rules(["straggler"])
    other = replace(rule, id="theirs", compare=compare)
    assert other.id not in rule_ids()
    monkeypatch.setattr(judging, "chosen_rules", lambda *_, **__: (other,))
    judge_paths([megatron_files], jobs=2)
    assert seen == [690] * 4


@pytest.mark.slow
@pytest.mark.corpus
def test_the_command_says_the_same_with_any_number_of_processes(
    megatron_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (megatron_files / "rank9.json.gz").write_bytes(b"\x1f\x8b no gzip")
    said = []
    for jobs in ([], ["--jobs", "1"], ["--jobs", "2"], ["--jobs", "8"]):
        assert run(["analyze", str(megatron_files), *jobs]) == 0
        said.append(capsys.readouterr())
    assert all(one == said[0] for one in said)
    assert "4 traces" in said[0].out.splitlines()[0] + said[0].out.splitlines()[1]
    assert "rank9.json.gz" in said[0].err
    assert run(["analyze", str(megatron_files), "--jobs", "0"]) == 2


def test_small_sets_are_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process takes longer than reading a small file."""
    asked: list[int] = []

    def counted(work: object, tasks: Sequence[str], jobs: int) -> Iterator[tuple[int, TaskResult]]:
        asked.append(jobs)
        return iter([(place, TaskResult()) for place in range(len(tasks))])

    monkeypatch.setattr(judging, "work_through", counted)
    monkeypatch.setattr(judging, "cores", lambda: 8)
    for size in (10, 400_000, 10_000_000):
        for rank in range(3):
            (tmp_path / f"{rank}.json").write_bytes(b"x" * size)
        with pytest.raises(DataError):
            judge_paths([tmp_path])
    with pytest.raises(DataError):
        judge_paths([tmp_path], jobs=5)
    assert asked == [1, 2, 8, 5]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="an empty folder"):
        judge_paths([tmp_path])
    with pytest.raises(DataError, match="no such file or folder"):
        judge_paths([tmp_path / "gone"])
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("no trace")
    with pytest.raises(DataError, match=r"no trace in it; a\.txt is text"):
        judge_paths([tmp_path], jobs=2)


JOB = (
    LOOP
    + """
import time, torch.distributed as dist
dist.init_process_group('gloo')
def after():
    if dist.get_rank() == 1:
        time.sleep(0.05)
    dist.all_reduce(torch.ones(4096))
work(16, after)
dist.destroy_process_group()
"""
)
"""Rank 1 comes late to each all-reduce."""


def run_report(path: Path, jobs: int) -> str:
    return render(judge_paths([path], jobs=jobs).analysis, "json")


def timing(rank: int, artifact: str | None, reason: str | None = None) -> Process:
    """A process whose light pass lies at ``artifact``."""
    held = Capture(
        pass_name="timing",
        tool="torch_profiler",
        state="missing" if artifact is None else "recorded",
        artifact=artifact,
        reason=reason,
    )
    return Process(
        rank=rank,
        directory=f"rank{rank:05d}",
        world_size=8,
        untraced_step_ns=(50_000_000, 51_000_000),
        captures=(held,),
    )


def make(folder: Path, processes: Sequence[Process]) -> Path:
    run = Run(
        id=folder.name, name="x", created_utc="2026-01-01T00:00:00", command=("x",), state="finished", exit_code=0
    )
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(dump(run))
    for process in processes:
        (folder / process.directory).mkdir()
        (folder / process.directory / "process.json").write_bytes(dump(process))
    return folder


@pytest.fixture
def megatron_run(corpus: Path, tmp_path: Path) -> Path:
    """A run of four of the eight ranks."""
    files = sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_[0-3]*"))
    processes = [timing(rank, f"rank{rank:05d}/timing.pt.trace.json.gz") for rank in range(len(files))]
    folder = make(tmp_path / "perfscope-runs" / "20261120-174233-train-7f3a", processes)
    for file, process in zip(files, processes, strict=True):
        shutil.copy(file, folder / process.directory / "timing.pt.trace.json.gz")
    return folder


@pytest.mark.corpus
@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_is_judged_as_in_memory(megatron_run: Path, jobs: int) -> None:
    assert run_report(megatron_run, jobs) == in_memory(megatron_run)
    assert run_report(megatron_run.parent, jobs) == in_memory(megatron_run.parent)
    held = judge_paths([megatron_run], jobs=jobs)
    assert held.analysis.collectives.jobs[0].recorded == (0, 1, 2, 3)
    assert held.analysis.run is not None
    assert {len(trace.rows["kernels"]) for trace in held.loaded.traces} == {84}  # and not the 690 of the recording


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize("jobs", [1, 2])
def test_ranks_that_left_nothing_or_damaged_files(megatron_run: Path, jobs: int) -> None:
    (megatron_run / "rank00001" / "timing.pt.trace.json.gz").write_bytes(b"\x1f\x8b no gzip")
    (megatron_run / "rank00003" / "process.json").write_text("{")
    judged = judge_paths([megatron_run], jobs=jobs)
    assert render(judged.analysis, "json") == in_memory(megatron_run)
    assert judged.analysis.collectives.jobs[0].recorded == (0, 2)
    said = "\n".join(judged.analysis.sources[0].notes)
    assert "rank00003/process.json cannot be read" in said
    assert "ranks 1, 3, 4, 5, 6, 7 of 8 left nothing here" in said


@pytest.mark.slow
@pytest.mark.corpus
def test_a_rank_of_a_run_whose_reader_is_killed_is_said(
    megatron_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judging, "JudgeTask", KilledAtRankTwo)
    assert command(["analyze", str(megatron_run), "--jobs", "2", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert (
        f"{megatron_run}/rank00002: not read: the process that read it was killed by signal 9, twice (out of memory?)"
        in err
    )
    told = json.loads(out)
    assert [source["rank"] for source in told["sources"]] == [0, 1, 3]
    assert any(note.startswith("rank00002 was not read: ") for note in told["sources"][0]["notes"])


def test_a_rank_that_breaks_its_reader_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [timing(rank, f"rank{rank:05d}/timing.pt.trace.json") for rank in range(3)]
    folder = make(tmp_path / "run", processes)
    for process in processes:
        (folder / process.directory / "timing.pt.trace.json").write_text(text(events()))
    read = kineto_reader.read

    def breaks(path: Path) -> Trace:
        if path.parent.name == "rank00001":
            raise LookupError("row 3")
        return read(path)

    monkeypatch.setattr(kineto_reader, "read", breaks)
    judged = judge_paths([folder], jobs=1)
    assert [trace.source.rank for trace in judged.loaded.traces] == [0, 2]
    (lost,) = judged.loaded.skipped
    assert (lost.path, lost.broken) == (f"{folder}/rank00001", True)
    assert lost.reason == "corrupt or unsupported file: it lacks row 3"
    assert render(judged.analysis, "json") == in_memory(folder)


def test_processes_of_one_recording_are_one_part(tmp_path: Path) -> None:
    folder = nsys_run(tmp_path, of_devices(100, 200, 300), 3)
    (part,) = divide_run(folder).parts
    assert len(part.processes) == 3
    assert part.run.processes == ()
    assert part.name() == part.artifacts()[0]
    assert run_report(folder, 2) == in_memory(folder)


@pytest.mark.torch
@pytest.mark.slow
def test_a_real_job(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = captured("--", *launcher, write(tmp_path, JOB), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "perfscope-runs" / "latest").resolve()
    assert load_path(folder).traces[0].op_graph is not None
    assert run_report(folder, 2) == run_report(folder, 1) == in_memory(folder)
    judged = judge_paths([folder], jobs=2)
    assert judged.analysis["straggler"].findings[0].ranks == (1,)
    assert all(trace.op_graph is None and trace.detail is None for trace in judged.loaded.traces)


def test_no_error_shows_a_login(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fsspec")
    for url in ("nonsense://me:pass/word@host/x", "memory://me:pass/word@host/x?token=pass/word"):
        assert run(["analyze", url]) in (2, 4)
        out, err = capsys.readouterr()
        assert "pass/word" not in out + err
        assert "[hidden]" in err


@pytest.mark.corpus
def test_no_report_shows_a_login(corpus: Path) -> None:
    fsspec: Any = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    (file, *_) = sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_0*"))
    system.pipe(f"/me:pass-word@host/{file.name}?token=12345678", file.read_bytes())
    try:
        judged = judge_paths([f"memory://me:pass-word@host/{file.name}?token=12345678"])
        for form in ("json", "text", "markdown", "html"):
            text = render(judged.analysis, form)
            assert "pass-word" not in text
            assert "12345678" not in text
        assert json.loads(render(judged.analysis, "json"))["sources"][0]["path"].endswith(f"{file.name}?token=[hidden]")
    finally:
        system.rm("/", recursive=True)


def test_files_that_only_secrets_tell_apart() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UsageError, match=r"\?id=\*\*\*: two URLs differ"):
        judge_paths(["https://127.0.0.1:9/x?id=1", "https://127.0.0.1:9/x?id=2"])
