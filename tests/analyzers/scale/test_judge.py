"""A set judged over digests is what it is with all tables in memory; broken, killed and odd files are said."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.engine import Examined, analyze
from perfscope.analyzers.finding import Finding, Rule
from perfscope.analyzers.load import load_path
from perfscope.analyzers.readers import hlo_text
from perfscope.analyzers.rules import RULES
from perfscope.analyzers.scale import judge as judging
from perfscope.analyzers.scale.digest import Digest, digest
from perfscope.analyzers.scale.judge import judge_paths, load_paths
from perfscope.analyzers.trace import Trace
from perfscope.dashboards.reports import render
from perfscope.profiler.errors import DataError


@pytest.fixture
def megatron(corpus: Path, tmp_path: Path) -> Path:
    """Four of the eight ranks."""
    for file in sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_[0-3]*")):
        shutil.copy(file, tmp_path)
    return tmp_path


def report(paths: Sequence[Path], jobs: int) -> str:
    return render(judge_paths(paths, jobs=jobs).analysis, "json")


def in_memory(path: Path) -> str:
    loaded = load_path(path)
    return render(replace(analyze(loaded.traces), run=loaded.run), "json")


def killed_at_rank_two(place: str, **more: object) -> Digest:
    if "kineto_2" in place:
        os.kill(os.getpid(), signal.SIGKILL)
    return digest(place)


@pytest.mark.corpus
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_folder_is_judged_as_in_memory(megatron: Path, jobs: int) -> None:
    assert report([megatron], jobs) == in_memory(megatron)


@pytest.mark.corpus
def test_files_named_one_by_one(megatron: Path) -> None:
    files = sorted(megatron.iterdir())
    assert report([*files, files[0]], 2) == report(files, 1)
    assert len(judge_paths(files, jobs=2).loaded.traces) == 4


@pytest.mark.corpus
def test_traces_of_a_set_hold_little(megatron: Path) -> None:
    traces = judge_paths([megatron], jobs=1).loaded.traces
    assert not any(len(trace.rows["memory"]) for trace in traces)
    assert {len(trace.rows["kernels"]) for trace in traces} == {84}


@pytest.mark.corpus
def test_damaged_and_other_files_are_said(megatron: Path) -> None:
    first = sorted(megatron.iterdir())[0]
    first.write_bytes(first.read_bytes()[:100_000])
    (megatron / "notes.txt").write_text("ranks 0 to 3")
    judged = judge_paths([megatron], jobs=2)
    assert {Path(one.path).name: one.broken for one in judged.loaded.skipped} == {first.name: True, "notes.txt": False}
    assert f"{first.name} was not read" in judged.analysis.sources[0].notes[-1]
    assert render(judged.analysis, "json") == in_memory(megatron)
    with pytest.raises(DataError, match=f"{first.name}: "):
        judge_paths(sorted(megatron.glob("*.gz")), jobs=2)


@pytest.mark.corpus
def test_a_rank_whose_reader_is_killed_is_said(megatron: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "digest", killed_at_rank_two)
    judged = judge_paths([megatron], jobs=2)
    (lost,) = judged.loaded.skipped
    assert (Path(lost.path).name, lost.broken) == ("astra-sim__megatron_kineto_2.json.gz", True)
    assert lost.reason == "what read it was killed by signal 9, twice (out of memory?)"
    assert [trace.source.rank for trace in judged.loaded.traces] == [0, 1, 3]
    assert judged.analysis.collectives.jobs[0].missing == (2, 4, 5, 6, 7)


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
    assert report(named, 2) == render(analyze(whole.traces), "json")


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
    monkeypatch.setattr("perfscope.analyzers.scale.digest.examine", watched)
    judge_paths([tmp_path], jobs=1)
    assert files == sorted(file.name for file in tmp_path.iterdir())
    assert judged == [2]


@pytest.mark.corpus
def test_a_program_beside_recordings(corpus: Path, megatron: Path) -> None:
    shutil.copy(corpus / "hlo_text" / "xla__hlo_llama3_8b_cp_bf16_1x4.hlo.gz", megatron)
    assert len(judge_paths([megatron], jobs=2).loaded.traces) == 5
    assert report([megatron], 2) == in_memory(megatron)


@pytest.mark.corpus
def test_a_rule_of_others_compares_whole_traces(megatron: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def compare(traces: Sequence[Trace]) -> list[Finding]:
        seen.extend(len(trace.rows["kernels"]) for trace in traces)
        return []

    (rule,) = judging.chosen_rules(["straggler"])
    other = replace(rule, id="theirs", compare=compare)
    assert other.id not in RULES
    monkeypatch.setattr(judging, "chosen_rules", lambda _: (other,))
    monkeypatch.setattr("perfscope.analyzers.engine.chosen_rules", lambda _: (other,))
    judge_paths([megatron], jobs=2)
    assert seen == [690] * 4


@pytest.mark.corpus
def test_the_command_says_the_same_with_any_number_of_processes(
    megatron: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (megatron / "rank9.json.gz").write_bytes(b"\x1f\x8b no gzip")
    said = []
    for jobs in ([], ["--jobs", "1"], ["--jobs", "2"], ["--jobs", "8"]):
        assert run(["analyze", str(megatron), *jobs]) == 0
        said.append(capsys.readouterr())
    assert all(one == said[0] for one in said)
    assert "4 traces" in said[0].out.splitlines()[0] + said[0].out.splitlines()[1]
    assert "rank9.json.gz" in said[0].err
    assert run(["analyze", str(megatron), "--jobs", "0"]) == 2


def test_small_sets_are_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process takes longer than reading a small file."""
    asked: list[int] = []

    def counted(work: object, tasks: Sequence[str], jobs: int) -> Iterator[tuple[int, Digest]]:
        asked.append(jobs)
        return iter([(place, Digest()) for place in range(len(tasks))])

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
