"""``perfscope report``, and the files that ``perfscope compare`` writes beside the screen."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.dashboards.reports import compare_json
from tests.commands.test_compare import paths as paths
from tests.dashboards import compared


@pytest.fixture
def stored(tmp_path: Path) -> str:
    path = tmp_path / "comparison.json"
    path.write_text(compare_json.as_text(compared.in_turns()))
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
    stored: str, form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert run(["report", stored, "--to", form]) == 0
    assert capsys.readouterr().out.startswith(BEGINS[form])


@pytest.mark.parametrize("form", ["text", "markdown", "html", "junit"])
def test_into_a_file(stored: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["report", stored, "--to", form, "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "wrote" in said.err
    assert out.read_text().startswith(BEGINS[form])


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


def test_a_report_never_goes_over_its_comparison(stored: str) -> None:
    before = Path(stored).read_text()
    assert run(["report", stored, "--to", "html", "-o", stored]) == 2
    assert Path(stored).read_text() == before


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
        assert (tmp_path / "markdown").read_text().startswith("<!-- perfscope-report:compare -->\n### perfscope: 🔴")
        assert (tmp_path / "html").read_text().startswith("<!DOCTYPE html>")
        assert int(ET.fromstring((tmp_path / "junit").read_text()).get("failures", "")) == 2
        assert summary.read_text().startswith("\n### perfscope: 🔴 regression")
        said = capsys.readouterr()
        assert "::error title=perfscope%3A host syncs a step%3A regression::" in said.out
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
