"""Files for pre-commit, editors and agents, against the output and commands of this version."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from perfscope.__main__ import run
from perfscope.commands.group import cli
from perfscope.plugins.mcp_server.answers import TOOLS
from tests.conftest import REPOSITORY

yaml = pytest.importorskip("yaml")
HOOKS = REPOSITORY / ".pre-commit-hooks.yaml"
MATCHER = REPOSITORY / "ci" / "problem-matcher.json"
SKILL = REPOSITORY / "skills" / "perfscope" / "SKILL.md"
RUN = REPOSITORY / "fixtures" / "advice" / "numpy_doubles"
FILE = "numpy_doubles.py"


def pattern() -> dict[str, Any]:
    (matcher,) = json.loads(MATCHER.read_text())["problemMatcher"]
    (one,) = matcher["pattern"]
    return one


def test_the_matcher_finds_the_lines_of_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).write_text("pass\n")
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    assert run(["analyze", str(RUN), "--format", "github"]) == 0
    known = pattern()
    found = [match for line in capsys.readouterr().out.splitlines() if (match := re.match(known["regexp"], line))]
    assert [tuple(match[known[key]] for key in ("severity", "file", "line", "code")) for match in found] == [
        ("warning", FILE, "11", "double_precision")
    ]
    assert found[0][known["message"]].startswith("6 matrix products per step in float64")


def test_the_page_has_the_same_matcher() -> None:
    page = (REPOSITORY / "docs" / "ci.md").read_text()
    (tasks,) = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if "tasks" in block)
    assert tasks["tasks"][0]["problemMatcher"]["pattern"] == pattern()


@pytest.mark.parametrize("gate", [[], ["--fail-on", "high"], ["--fail-on", "none"]])
def test_the_hook_gates_on_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: list[str]) -> None:
    (hook,) = yaml.safe_load(HOOKS.read_text())
    assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("python", False, True)
    runs = tmp_path / "perfscope-runs"
    runs.mkdir()
    (runs / "one").symlink_to(RUN)
    (runs / "latest").symlink_to("one")
    monkeypatch.chdir(tmp_path)
    program, *words = hook["entry"].split()
    assert program == "perfscope"
    assert run([*words, *gate]) == (0 if "none" in gate else 1)


@pytest.mark.slow
def test_the_hook_in_pre_commit(tmp_path: Path) -> None:
    pytest.importorskip("pre_commit", reason="pre-commit is not installed")
    clone, project = tmp_path / "clone", tmp_path / "project"
    for command in (
        ["git", "clone", "-q", str(REPOSITORY), str(clone)],
        ["git", "init", "-q", str(project)],
    ):
        subprocess.run(command, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True).stdout
    (project / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {clone}\n    rev: {head.strip()}\n    hooks:\n      - id: perfscope\n"
    )
    runs = project / "perfscope-runs"
    runs.mkdir()
    (runs / "one").symlink_to(RUN)
    (runs / "latest").symlink_to("one")
    subprocess.run(["git", "add", ".pre-commit-config.yaml"], cwd=project, check=True)
    done = subprocess.run(
        ["pre-commit", "run", "--hook-stage", "pre-push", "--all-files"], cwd=project, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "double_precision" in done.stdout


def test_the_skill_has_the_layout_that_agents_read_and_names_real_commands() -> None:
    _, front, body = SKILL.read_text().split("---\n", 2)
    held = yaml.safe_load(front)
    assert held["name"] == SKILL.parent.name
    assert 0 < len(held["description"]) <= 1024
    assert len(held["compatibility"]) <= 500
    verbs = set(re.findall(r"`perfscope ([a-z]+)", body))
    assert len(verbs) > 8
    assert verbs <= set(cli.list_commands(click.Context(cli)))
    agents = (REPOSITORY / "docs" / "agents.md").read_text()
    assert [tool for tool in TOOLS if f"`{tool}`" not in agents] == []
