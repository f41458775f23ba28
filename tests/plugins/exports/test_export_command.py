"""``perfscope export`` from a path to a file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers.load import load_all
from perfscope.model.errors import UsageError
from perfscope.plugins.exports import PLUGIN
from perfscope.plugins.exports.command import FORMATS
from perfscope.plugins.exports.export import Subject, export, module_of
from tests.plugins.exports.trace_equality import totals
from tests.plugins.exports.traces import everything


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace file, as Chrome's JSON."""
    export(Subject(traces=(everything(),)), "chrome", tmp_path / "made.trace.json.gz")
    return tmp_path / "made.trace.json.gz"


def test_the_command_knows_every_format() -> None:
    assert set(FORMATS) >= set(PLUGIN.exports)
    for form in FORMATS:
        module = module_of(form)
        assert module.SUFFIX
        assert isinstance(module.FOLDER, bool)
    with pytest.raises(UsageError, match="svg: no such export format; there are chrome, parquet"):
        module_of("svg")


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_written_beside_the_user(
    trace: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (trace.parent / "here").mkdir()
    monkeypatch.chdir(trace.parent / "here")
    assert run(["export", str(trace), "--to", form]) == 0
    (written,) = Path.cwd().iterdir()
    assert written.name == f"made{module_of(form).SUFFIX}"
    assert written.is_dir() is module_of(form).FOLDER
    assert f"perfscope: wrote {written.name}" in capsys.readouterr().err
    assert run(["export", str(trace), "--to", form, "-o", "again", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_findings_are_drawn_and_can_be_left_out(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = trace.parent / "t.json"
    assert run(["export", str(trace), "--to", "chrome", "-o", str(target), "-q"]) == 0
    with_findings = [event for event in json.loads(target.read_text())["traceEvents"] if event.get("cat") == "finding"]
    assert with_findings
    assert all(event["args"]["advice"] for event in with_findings)
    assert run(["export", str(trace), "--to", "chrome", "--no-findings", "-o", str(target), "-q"]) == 0
    assert '"finding"' not in target.read_text()


def test_several_paths_become_one_file(tmp_path: Path) -> None:
    for rank in range(2):
        export(Subject(traces=(everything(rank=rank),)), "chrome", tmp_path / f"rank{rank}.json")
    target = tmp_path / "out" / "t.pftrace"
    target.parent.mkdir()
    paths = [str(tmp_path / f"rank{rank}.json") for rank in range(2)]
    assert run(["export", *paths, "--to", "perfetto", "-o", str(target), "-q"]) == 0
    back = load_all(target)
    assert [one.source.rank for one in back] == [0, 1]
    assert [totals(one)["kernels"] for one in back] == [5, 5]


def test_an_input_is_never_written_over(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = trace.read_bytes()
    assert run(["export", str(trace), "--to", "chrome", "-o", str(trace)]) == 2
    assert "is the trace itself" in capsys.readouterr().err
    beside = trace.parent / "notes.txt"
    beside.write_text("mine")
    assert run(["export", str(trace.parent), "--to", "chrome", "-o", str(beside)]) == 2
    assert "is a file of" in capsys.readouterr().err
    assert (trace.read_bytes(), beside.read_text()) == (before, "mine")


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", 4, "an empty file"),
        (b"hello\n", 4, "text"),
        (gzip.compress(b'{"traceEvents": [', mtime=0), 4, "does not end"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, content: bytes, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").write_bytes(content)
    assert run(["export", str(tmp_path / "bad"), "--to", "perfetto", "-o", str(tmp_path / "out")]) == code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"perfscope: {tmp_path}/bad: ")
    assert said in line
    assert not (tmp_path / "out").exists()


def test_asked_wrongly(trace: Path) -> None:
    assert run(["export", str(trace)]) == 2
    assert run(["export", str(trace), "--to", "svg"]) == 2
    assert run(["export", str(trace), "--to", "parquet", "--align-clocks"]) == 2
    assert run(["export", str(trace.parent / "absent"), "--to", "chrome"]) == 4
