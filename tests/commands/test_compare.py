"""``perfscope compare`` from paths to exit codes."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers import load as loading
from perfscope.dashboards.report.compare import json as compare_json
from perfscope.model.documents import comparison as compare_document
from perfscope.model.trace import Trace
from tests.compare.runs import gpu_run, host_run
from tests.conftest import REPOSITORY
from tests.report import comparisons


class Reader(ModuleType):
    """``STEPS KIND``: a small recording."""

    @staticmethod
    def sniff(path: Path, head: bytes) -> bool:
        return head.startswith(b"STEPS")

    @staticmethod
    def read(path: Path) -> Trace:
        kind = path.read_text().split()[1]
        return host_run() if kind == "host" else gpu_run(item=kind == "item", steps=8)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(loading, "_readers", lambda: iter([Reader("steps")]))
    for kind in ("plain", "item", "host"):
        (tmp_path / kind).write_text(f"STEPS {kind}")
    (tmp_path / "broken").write_text("nothing of the kind")
    return {kind: str(tmp_path / kind) for kind in ("plain", "item", "host", "broken")}


def test_a_regression_is_told_and_the_code_is_0(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", paths["plain"], paths["item"]]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("perfscope: regression")
    assert said.err == ""


@pytest.mark.parametrize(
    ("base", "head", "gates", "code"),
    [
        ("plain", "item", ["regression"], 1),
        ("item", "plain", ["regression"], 0),
        ("plain", "plain", ["regression", "finding:low"], 0),
        ("plain", "item", ["finding:low"], 1),
        ("item", "plain", ["finding:low"], 0),
        ("plain", "plain", ["inconclusive"], 1),
        ("plain", "item", ["speed"], 2),
        ("plain", "broken", [], 4),
        ("plain", "gone", [], 4),
    ],
)
def test_exit_codes(paths: dict[str, str], base: str, head: str, gates: list[str], code: int) -> None:
    asked = [part for gate in gates for part in ("--fail-on", gate)]
    assert run(["compare", paths[base], paths.get(head, "/no/such/place"), *asked]) == code


def test_strict_ends_with_3_where_a_time_was_not_judged(paths: dict[str, str]) -> None:
    assert run(["compare", paths["plain"], paths["plain"], "--strict"]) == 3
    assert run(["compare", paths["plain"], paths["item"], "--strict", "--fail-on", "regression"]) == 1


@pytest.mark.corpus
def test_a_report_never_goes_over_its_input(corpus: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json.gz"
    held = (corpus / "kineto" / "TraceLens__h100_bert-small.json.gz").read_bytes()
    trace.write_bytes(held)
    assert run(["compare", str(trace), str(trace), "--json", str(trace)]) == 2
    assert trace.read_bytes() == held


@pytest.mark.corpus
def test_a_port_without_an_op_graph_is_refused_in_one_line(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, program = (
        corpus / "kineto" / "TraceLens__h100_bert-small.json.gz", corpus / "aot" / "gpu_attn_naive.hlo.txt.gz",
    )  # fmt: skip
    assert run(["compare", str(trace), str(program)]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no op graph" in said.err


PLAIN, ITEM = "cpu-attention-sdpa", "cpu-attention-sdpa-item"


def lay(folder: Path, name: str, at: int, **changed: Any) -> Path:
    """A recorded run in ``folder``, as if it had been the ``at``-th launch."""
    place = folder / f"20260101-{at:06}-train-abcd"
    shutil.copytree(REPOSITORY / "fixtures" / name, place)
    manifest = json.loads((place / "run.json").read_text())
    manifest |= {"created_utc": f"2026-01-01T00:00:{at:02}+00:00", "command": ["train.py"], **changed}
    (place / "run.json").write_text(json.dumps(manifest))
    return place


def sets(root: Path, names: dict[str, str], each: int = 2) -> tuple[Path, Path]:
    """Launches of both sides in turns."""
    for at in range(2 * each):
        arm = ("base", "head", "head", "base")[at % 4]
        lay(root / arm, names[arm], at)
    return root / "base", root / "head"


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    exit_code: int
    output: str


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``perfscope compare ARGUMENTS``."""

    def called(*arguments: object) -> Done:
        code = run(["compare", *map(str, arguments)])
        said = capsys.readouterr()
        return Done(exit_code=code, output=said.out + said.err)

    return called


@pytest.mark.slow
def test_two_sets(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": ITEM})
    out = tmp_path / "out.json"
    done = compare(base, head, "--json", out, "--fail-on", "regression")
    assert done.exit_code == 1, done.output
    held = json.loads(out.read_text())
    document = compare_document.parse(out.read_bytes(), str(out))
    assert (document.headline, document.method.kind) == ("regression", "sets of runs")
    assert (held["method"]["pairs"], held["method"]["profiled"]) == (2, 2)
    assert [one["arm"] for one in held["method"]["launches"]] == ["base", "head", "head", "base"]
    assert "training.py" in held["causes"][0]["place"]
    assert held["base"]["paths"] == [str(base)]
    assert compare(head, base, "--fail-on", "regression").exit_code == 0


@pytest.mark.slow
def test_a_run_against_a_set(tmp_path: Path, compare: Callable[..., Done]) -> None:
    _, head = sets(tmp_path, {"base": PLAIN, "head": ITEM})
    one = lay(tmp_path / "alone", PLAIN, 30)
    done = compare(one, head)
    assert (done.exit_code, "sets of runs" in done.output) == (0, True), done.output


def test_one_run_in_a_folder_is_that_run(tmp_path: Path, compare: Callable[..., Done]) -> None:
    lay(tmp_path / "base", PLAIN, 1)
    lay(tmp_path / "head", PLAIN, 2)
    done = compare(tmp_path / "base", tmp_path / "head")
    assert done.exit_code == 0, done.output
    assert "sets of runs" not in done.output


def test_traces_beside_runs(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    trace = next(base.glob("*/rank00000/timing.pt.trace.json.gz"))
    shutil.copy(trace, base / "rank0.pt.trace.json.gz")
    (base / "notes.txt").write_text("no trace")
    done = compare(base, head)
    assert done.exit_code == 4
    assert done.output.count("\n") == 1
    assert "and a trace (rank0.pt.trace.json.gz)" in done.output


def test_runs_of_several_programs(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    lay(base, PLAIN, 40, command=["other.py"])
    done = compare(base, head)
    assert done.exit_code == 2
    assert "runs of 2 programs (`train.py`, `other.py`)" in done.output


def test_a_set_and_a_file(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, _ = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    trace = next(base.glob("*/rank00000/timing.pt.trace.json.gz"))
    done = compare(base, trace)
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "not a run" in done.output


@pytest.mark.slow
def test_a_run_that_cannot_be_read_is_left_out_and_named(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    broken = lay(base, PLAIN, 41)
    shutil.rmtree(broken / "rank00000")
    done = compare(base, head)
    assert done.exit_code == 0, done.output
    assert "20260101-000041-train-abcd was left out" in " ".join(done.output.split())


def test_none_can_be_read(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    for one in base.iterdir():
        shutil.rmtree(one / "rank00000")
    done = compare(base, head)
    assert (done.exit_code, done.output.count("\n")) == (4, 1)
    assert "none of its 2 runs can be read" in done.output


@pytest.mark.corpus
def test_ranks_are_no_set(corpus: Path, tmp_path: Path, compare: Callable[..., Done]) -> None:
    """The traces of one job's ranks in a folder are one side of four ranks, as before."""
    for name in ("sst_long_a2a", "sst_sleep"):
        (tmp_path / name).mkdir()
        for file in (corpus / "kineto").glob(f"torchrec__{name}*"):
            shutil.copy(file, tmp_path / name)
    out = tmp_path / "out.json"
    assert compare(tmp_path / "sst_long_a2a", tmp_path / "sst_sleep", "--json", out).exit_code == 0
    held = json.loads(out.read_text())
    assert (held["base"]["ranks"], held["method"]["kind"]) == (4, "single captures")


@pytest.fixture
def stored(tmp_path: Path) -> str:
    path = tmp_path / "comparison.json"
    path.write_text(compare_json.as_text(comparisons.interleaved_launches()))
    return str(path)


BEGINS = {
    "text": "perfscope: regression: step time +3.0%",
    "markdown": "<!-- perfscope-report:compare -->\n### perfscope: 🔴 regression",
    "html": "<!DOCTYPE html>",
    "junit": '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="perfscope compare"',
    "github": "::error ",
}


@pytest.mark.parametrize("form", sorted(BEGINS))
def test_every_form(
    stored: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert run(["report", stored, "--to", form]) == 0
    assert capsys.readouterr().out.startswith(BEGINS[form])
    out = tmp_path / "out"
    if form != "github":
        assert run(["report", stored, "--to", form, "-o", str(out)]) == 0
        said = capsys.readouterr()
        assert (said.out, "wrote" in said.err) == ("", True)
        assert out.read_text().startswith(BEGINS[form])
        before = Path(stored).read_text()
        assert run(["report", stored, "--to", form, "-o", stored]) == 2
        assert Path(stored).read_text() == before


def test_a_comment_has_a_key_and_a_link(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    link = "https://example.invalid/artifact"
    assert run(["report", stored, "--to", "markdown", "--key", "llama.8b", "--link", link]) == 0
    said = capsys.readouterr().out
    assert said.startswith("<!-- perfscope-report:llama.8b -->\n")
    assert f"[full report]({link})" in said


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--to", "markdown", "--key", "a b"], 2, "a key has letters"),
        (["--to", "markdown", "--link", "javascript:x"], 2, "not an http(s) address"),
        (["--to", "html", "--key", "a"], 2, "only a comment"),
        (["--to", "html", "--link", "https://a"], 2, "only a comment"),
        (["--to", "github", "-o", "x"], 2, "annotations go to stdout"),
        (["--to", "html", "-o", "/no/such/folder/x.html"], 4, "cannot be written"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    stored: str, options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", stored, *options]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{}", '{"schema": "perfscope.compare/9"}', "[" * 100_000, "\x00"])
def test_what_is_no_comparison_is_one_line(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    assert run(["report", str(path)]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert str(path) in told.err


def test_the_screen_of_a_job_holds_no_command(
    stored: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert run(["report", stored]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("::stop-commands::")
    assert lines[-1] == f"::{lines[0].removeprefix('::stop-commands::')}::"


class TestCompare:
    def test_every_file_at_once(
        self, paths: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        summary = tmp_path / "summary.md"
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
        asked = [word for form in ("json", "markdown", "html", "junit") for word in (f"--{form}", str(tmp_path / form))]
        assert run(["compare", paths["plain"], paths["item"], *asked, "--github", "--fail-on", "finding:high"]) == 1
        held = json.loads((tmp_path / "json").read_text())
        assert held["gates"] == ["finding:high"]
        assert held["headline"] == "regression"
        assert (tmp_path / "markdown").read_text().startswith("<!-- perfscope-report:compare -->\n### perfscope: 🔴")
        assert (tmp_path / "html").read_text().startswith("<!DOCTYPE html>")
        assert int(ET.fromstring((tmp_path / "junit").read_text()).get("failures", "")) == 2
        assert summary.read_text().startswith("\n### perfscope: 🔴 regression")
        said = capsys.readouterr()
        assert "::error title=perfscope%3A host syncs per step%3A regression::" in said.out
        assert "perfscope: regression" in said.out
        assert said.err.count("perfscope: wrote") == 4

    @pytest.mark.parametrize(
        ("options", "code", "said"),
        [
            (["--json", "-", "--html", "-"], 2, "two reports cannot go there"),
            (["--json", "a", "--html", "./a"], 2, "two reports cannot go there"),
            (["--json", "-", "--github"], 2, "--github: its annotations go to stdout"),
            (["--html", "/no/such/folder/x"], 4, "no such folder"),
        ],
    )
    def test_outputs_are_checked_before_the_work(
        self, options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["compare", "/no/such/base", "/no/such/head", *options]) == code
        assert said in capsys.readouterr().err

    def test_one_of_them_on_stdout_alone(self, paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["compare", paths["plain"], paths["plain"], "--markdown", "-"]) == 0
        said = capsys.readouterr()
        assert said.out.count("\n") == 2
        assert said.err == ""
