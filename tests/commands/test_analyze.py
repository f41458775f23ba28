"""``perfscope analyze`` from path to report: formats, files, gates, and what goes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
from jsonschema import Draft202012Validator

from perfscope.__main__ import run
from perfscope.analyzers import registry
from perfscope.analyzers.readers import load as loading
from perfscope.model.errors import DataError, see
from perfscope.model.finding import Finding
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY

MS = 1000.0


class Reader(ModuleType):
    """``FAKE <rank> [hour]``: a trace of that rank with one kernel; ``FAKE broken`` cannot be read."""

    @staticmethod
    def sniff(path: Path, head: bytes) -> bool:
        return head.startswith(b"FAKE")

    @staticmethod
    def read(path: Path) -> Trace:
        word, *hours = path.read_text().split()[1:]
        if word == "broken":
            raise DataError(f"{path}: cut off")
        builder = TraceBuilder(rank=int(word), path=str(path))
        at = sum(map(float, hours)) * 3_600_000 * MS
        builder.launched("gemm", at, at + 10 * MS, at + 90 * MS, correlation=1)
        builder.step(0, at, at + 100 * MS)
        return builder.build()


class Rules(ModuleType):
    """A rule with findings of the severities that the test sets."""

    NEEDS = ("device_work",)
    severities: tuple[Severity, ...] = ("medium",)

    def check(self, trace: Trace) -> Iterable[Finding]:
        for severity in self.severities:
            yield Finding(
                subject=severity, title=f"a {severity} thing", severity=severity, basis="measured", advice="Mend it.",
                cost_ns=5_000_000, cost_ns_per_step=5_000_000,
            )  # fmt: skip


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Rules:
    rule = Rules("fake_rule", "Something is bad.")
    monkeypatch.setitem(sys.modules, "fake_reader", Reader("fake_reader"))
    monkeypatch.setitem(sys.modules, "fake_rule", rule)
    for module in (registry, loading):
        monkeypatch.setattr(module, "named", lambda _: {})
    monkeypatch.setattr(loading, "READERS", {"fake": "fake_reader"})
    monkeypatch.setattr(registry, "RULES", {"bad_thing": "fake_rule", "other_thing": "fake_rule"})
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return rule


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "t.json", 0)


def written(path: Path, what: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"FAKE {what}")
    return path


def test_text_is_printed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "-v", str(trace)]) == 0
    assert "Mend it." in capsys.readouterr().out
    assert run(["analyze", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "Mend it." not in out
    lines = out.splitlines()
    assert lines[0].endswith("t.json (kineto, rank 0, 5 events)")
    assert any(line.split()[1:3] == ["compute", "80.0"] for line in lines)
    assert any(line.split()[:7] == ["1.", "5.00", "ms", "5.0%", "of", "step", "bad_thing"] for line in lines)


def test_json_is_printed_and_valid(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(trace), "--format", "json", "--rule", "bad-thing", "--rule", "bad_thing"]) == 0
    held = json.loads(capsys.readouterr().out)
    Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())).validate(held)
    assert [outcome["rule"] for outcome in held["outcomes"]] == ["bad_thing"]
    assert held["devices"][0]["busy_ns"] == 80_000_000


def test_ranks_of_one_job_each_read_once_and_format_wins_over_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, file = written(tmp_path / "a", 0), written(tmp_path / "b", 1), tmp_path / "report.out"
    arguments = [str(first), str(second), str(first), "--format", "json", "-o", str(file)]
    assert run(["analyze", "-q", *arguments]) == 0
    assert capsys.readouterr() == ("", "")
    assert [source["rank"] for source in json.loads(file.read_text())["sources"]] == [0, 1]


def test_files_by_suffix_and_nothing_on_stdout(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [tmp_path / name for name in ("r.html", "r.json", "r.md", "r.txt")]
    named = [word for file in outputs for word in ("-o", str(file))]
    assert run(["analyze", str(trace), *named, "--fail-on", "low"]) == 1  # judged after the reports are written
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.rpartition("/")[2] for line in err.splitlines()] == ["r.html", "r.json", "r.md", "r.txt"]
    starts = [file.read_text()[:11] for file in outputs]
    assert starts == ["<!DOCTYPE h", '{\n  "schema', "### perfsco", "perfscope: "]


@pytest.mark.parametrize(
    ("has", "fail_on", "code"),
    [
        (("medium",), "low", 1), (("medium",), "medium", 1), (("medium",), "high", 0), (("low", "high"), "high", 1),
        ((), "low", 0), (("high",), None, 0),
    ],
)  # fmt: skip
def test_the_gate(
    trace: Path, fakes: Rules, has: tuple[Severity, ...], fail_on: str | None, code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    fakes.severities = has
    assert run(["analyze", str(trace), *(["--fail-on", fail_on] if fail_on else [])]) == code
    assert "perfscope: " in capsys.readouterr().out


def test_an_abstention_does_not_pass_for_clean_nor_for_a_finding(
    trace: Path, fakes: Rules, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.NEEDS = ("op_graph",)  # type: ignore[assignment]
    assert run(["analyze", str(trace), "--fail-on", "low"]) == 0
    short = capsys.readouterr().out
    assert "2 not evaluated" in short
    assert run(["analyze", "-v", str(trace), "--fail-on", "low"]) == 0
    out = capsys.readouterr().out
    assert "bad_thing, other_thing (not recorded: the op graph of one step" in out
    assert "clean:" not in short + out


def test_a_folder_of_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    for rank in range(3):
        written(folder / f"r{rank}", rank)
    written(folder / "r3", "broken")
    for index in range(5):
        (folder / f"note{index}.txt").write_text("x")
    assert run(["analyze", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "3 traces" in out
    assert "; ranks 0-2)" in out
    assert "note: r3 was not read: cut off" in out
    assert f"perfscope: {folder}/r3: not read: cut off\n" in err
    assert "perfscope: skipped, not a trace: " in err
    assert err.endswith("note2.txt and 2 more\n")
    assert run(["analyze", "-q", str(folder)]) == 0
    assert capsys.readouterr().err == ""


def test_strangers_in_a_folder_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    for name, what in {"job0": "0", "job1": "1", "a": "0 1", "b": "0 2", "c": "7 3", "d": "0 4"}.items():
        written(folder / name, what)
    left_out = "the folder has more than one job; left out: a, b, d and 1 more; `perfscope analyze FILE` judges each"
    assert run(["analyze", str(folder), "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == f"perfscope: {left_out}\n"
    assert "2 traces" in out
    assert "; ranks 0-1)" in out
    assert left_out in " ".join(out.split())
    assert run(["analyze", "-q", str(folder), "--format", "json"]) == 0
    sources = json.loads(capsys.readouterr().out)["sources"]
    assert [Path(source["path"]).name for source in sources] == ["job0", "job1"]
    assert run(["analyze", "-q", *map(str, sorted(folder.iterdir())), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["sources"]) == 6  # named one by one: all


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["{folder}/absent"], 4, "perfscope: {folder}/absent: no such file or folder\n"),
        (["{folder}/broken"], 4, "perfscope: {folder}/broken: cut off\n"),
        (["{folder}/t.json", "{folder}/broken"], 4, "perfscope: {folder}/broken: cut off\n"),
        (["{folder}/text"], 4, "perfscope: {folder}/text: text; perfscope reads: fake" + see("I have a trace") + "\n"),
        (["{folder}/t.json", "--rule", "x"], 2, "perfscope: x: unknown rule; `perfscope rules` lists them\n"),
        (["{folder}/t.json", "-o", "{folder}/no/r.json"], 4,
         "perfscope: {folder}/no/r.json: cannot be written: no such file or directory\n"),
        (["{folder}/t.json", "-o", "{folder}/r.json"], 4,
         "perfscope: {folder}/r.json: cannot be written: is a directory\n"),
    ],
)  # fmt: skip
def test_errors_are_one_line(
    trace: Path, arguments: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written(trace.parent / "broken", "broken")
    (trace.parent / "text").write_text("x")
    (trace.parent / "r.json").mkdir()
    assert run(["analyze", *(word.format(folder=trace.parent) for word in arguments)]) == code
    assert capsys.readouterr() == ("", line.format(folder=trace.parent))


def test_a_suffix_that_says_nothing_is_asked_for_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", str(tmp_path / "absent"), "-o", "report.pdf"]) == 2
    assert "report.pdf: which format?" in capsys.readouterr().err


def test_a_trace_is_never_overwritten_by_its_report(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trace.read_bytes()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.json").symlink_to(trace)
    for output in ("t.json", "./t.json", "link.json"):
        assert run(["analyze", str(trace), "-o", output]) == 2
        assert (
            capsys.readouterr().err == f"perfscope: {output}: is the trace itself; what is written needs another file\n"
        )
    assert trace.read_bytes() == before


@pytest.mark.parametrize(
    ("environment", "colored"),
    [
        ({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"NO_COLOR": "1"}, False),
    ],
)  # fmt: skip
def test_color_by_the_environment(
    trace: Path, environment: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run(["analyze", str(trace)]) == 0
    assert ("\x1b[" in capsys.readouterr().out) == colored


@pytest.mark.corpus
def test_a_real_trace_in_every_format(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    real = corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz"
    files = [tmp_path / f"out.{suffix}" for suffix in ("txt", "json", "md", "html")]
    assert run(["analyze", str(real), "-v", *(word for file in files for word in ("-o", str(file)))]) == 0
    assert all("MI300X" in file.read_text() for file in files)
    held = json.loads(files[1].read_text())
    Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())).validate(held)
    (device,) = held["devices"]
    parts = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
    assert sum(device[part] for part in parts) == device["span_ns"]
