"""Earlier analyses are reused for the same files, options and code only."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers import analysis_cache, judge
from perfscope.analyzers.analysis_cache import MAGIC, entry_for, recall
from perfscope.analyzers.selection import Selection
from tests.conftest import REPOSITORY

RECORDED = (
    "kineto/HolisticTraceAnalysis__trace_diff_control.json.gz",
    "nsys_sqlite/nsys-ai__mfu_2gpu_before.sqlite.gz",
    "torch_mem/assignment2-systems__fragmented.pickle.gz",
    "xplane/TraceLens__mi300_jax_conv_08.xplane.pb.gz",
)
Report = Callable[..., str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(analysis_cache, "SMALLEST", 1)
    return tmp_path / "cache"


@pytest.fixture
def trace(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(corpus / "kineto/TraceLens__h100_bert-small.json.gz", tmp_path / "trace.json.gz"))


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry each time that something is judged."""
    counted: list[int] = []
    original = judge.judge_paths
    monkeypatch.setattr(judge, "judge_paths", lambda *a, **k: counted.append(1) or original(*a, **k))
    return counted


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    def reported(*arguments: object) -> str:
        assert run(["analyze", *map(str, arguments)]) == 0
        return capsys.readouterr().out

    return reported


@pytest.mark.parametrize(("file", "form"), [*((file, "json") for file in RECORDED), (RECORDED[-1], "html")])
def test_a_recalled_report_is_the_same(
    file: str, form: str, corpus: Path, cache: Path, times: list[int], report: Report
) -> None:
    first = report(corpus / file, "--format", form)
    assert report(corpus / file, "--format", form) == first
    assert len(times) == 1
    assert [path.stat().st_mode & 0o777 for path in (cache, *cache.glob("*.analysis"))] == [0o700, 0o600]


def test_it_says_so(trace: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        run(["analyze", str(trace)])
    assert "--no-cache judges again" in capsys.readouterr().err
    run(["analyze", "-q", str(trace)])
    assert not capsys.readouterr().err


def test_every_format_and_the_gate_are_of_one_entry(trace: Path, cache: Path, times: list[int]) -> None:
    assert run(["analyze", str(trace), "-q"]) == 0
    assert run(["analyze", str(trace), "-v", "--format", "json"]) == 0
    assert run(["analyze", str(trace), "-q", "--fail-on", "low"]) == 1
    assert run(["analyze", str(trace), "-q", "-o", str(trace)]) == 2, "a report over the trace is refused all the same"
    assert len(times) == 1


@pytest.mark.parametrize("options", [("--rule", "launch_bound"), ("--time", "0s:1ms"), ("--device", "H200")])
def test_other_options_are_judged(options: tuple[str, str], trace: Path, cache: Path, times: list[int]) -> None:
    run(["analyze", str(trace), "-q"])
    run(["analyze", str(trace), "-q", *options])
    assert len(times) == 2


def test_a_changed_file_is_judged_even_with_its_size_time_and_ends(trace: Path, cache: Path, times: list[int]) -> None:
    plain = trace.with_suffix("")
    content = bytearray(gzip.decompress(trace.read_bytes()))
    plain.write_bytes(content)
    run(["analyze", str(plain), "-q"])
    before = plain.stat()
    place = content.index(b"aten::", len(content) // 4)
    with plain.open("r+b") as file:
        file.seek(place)
        file.write(b"atem::")
    os.utime(plain, ns=(before.st_atime_ns, before.st_mtime_ns))
    run(["analyze", str(plain), "-q"])
    assert len(times) == 2


@pytest.mark.parametrize("name", ["_own_code", "entries"])
def test_other_code_judges_again(
    name: str, trace: Path, cache: Path, times: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(["analyze", str(trace), "-q"])
    monkeypatch.setattr(analysis_cache, name, lambda: "other")
    run(["analyze", str(trace), "-q"])
    assert len(times) == 2


def test_the_flag_and_the_variable(trace: Path, cache: Path, times: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        run(["analyze", str(trace), "-q", "--no-cache"])
    assert len(times) == 2
    assert len(list(cache.iterdir())) == 1, "the next one without the flag finds it"
    monkeypatch.setenv("PERFSCOPE_CACHE", "off")
    assert entry_for([trace]) is None


class _Command:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch pickled",)


def _signed(content: bytes) -> bytes:
    return MAGIC + hashlib.blake2b(content).digest() + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        MAGIC,
        MAGIC + bytes(200),
        _signed(b"no pickle"),
        _signed(pickle.dumps([1])),
        _signed(pickle.dumps(_Command())),
    ],
    ids=["empty", "cut", "checksum", "no pickle", "another thing", "a command"],
)
def test_an_entry_that_is_not_ours_is_judged_and_written_again(
    content: bytes, trace: Path, cache: Path, times: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    run(["analyze", str(trace), "-q"])
    (entry,) = cache.glob("*.analysis")
    entry.write_bytes(content)
    run(["analyze", str(trace), "-q"])
    assert len(times) == 2
    assert not Path("pickled").exists()
    assert recall(entry) is not None


def test_what_others_may_write_is_not_read(trace: Path, cache: Path, times: list[int]) -> None:
    run(["analyze", str(trace), "-q"])
    cache.chmod(0o770)
    run(["analyze", str(trace), "-q"])
    assert len(times) == 2


def test_the_code_of_findings_is_looked_up_anew(cache: Path) -> None:
    recorded = REPOSITORY / "fixtures" / "cpu-attention-sdpa-item"
    entry = entry_for([recorded])
    assert entry is not None
    run(["analyze", str(recorded), "-q"])
    kept = recall(entry)
    assert kept is not None
    file = next(finding.where.file for _, finding in kept.analysis.findings() if finding.where.file)
    named = [finding for _, finding in kept.analysis.findings() if finding.where.file == file]
    silencing = analysis_cache.Configuration(ignore=(file,))
    again = recall(entry, silencing)
    assert again is not None
    assert len(again.analysis.silenced()) == len(named)


def test_the_longest_unused_go(trace: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(["analyze", str(trace), "-q"])
    (first,) = cache.glob("*.analysis")
    monkeypatch.setattr(analysis_cache, "ROOM", first.stat().st_size + 100)
    run(["analyze", str(trace), "-q", "--rule", "launch_bound"])
    assert not first.exists()
    assert len(list(cache.glob("*.analysis"))) == 1


def test_small_recordings_are_not_kept(trace: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_cache, "SMALLEST", trace.stat().st_size + 1)
    assert entry_for([trace]) is None
    assert entry_for(["s3://bucket/traces"]) is None
    assert entry_for(["nowhere"]) is None


def test_selections_have_entries_of_their_own(trace: Path, cache: Path) -> None:
    chosen = [Selection(), Selection(ranks=frozenset({0})), Selection(steps=(0, None)), Selection(time_ns=(0, None))]
    assert len({entry_for([trace], selection=selection) for selection in chosen}) == 4
