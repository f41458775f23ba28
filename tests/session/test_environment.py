"""Data on the machine in a manifest, and data that is kept out of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfscope.model import commits, environment
from perfscope.model.environment import BRANCH_VARIABLES


def test_git_says_commit_and_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment.git_facts() is None
    (tmp_path / "a").write_text("1")
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q", "-b", "topic"], ["add", "a"], [*identity, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", *words], check=True)
    clean = environment.git_facts()
    assert clean is not None
    assert (len(str(clean["commit"])), clean["branch"], clean["dirty"]) == (40, "topic", False)
    (tmp_path / "a").write_text("2")
    assert environment.git_facts() == {"commit": clean["commit"], "branch": "topic", "dirty": True}
    for name in environment.BRANCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    subprocess.run(["git", "checkout", "-q", "--detach"], check=True)
    assert environment.git_facts() == {"commit": clean["commit"], "dirty": True}
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    assert environment.git_branch() == "main"
    monkeypatch.setenv("GITHUB_HEAD_REF", "pull")
    assert environment.git_branch() == "pull"


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor : 0\nmodel name\t: AMD EPYC  7R13\nmodel name\t: another\n", "AMD EPYC 7R13"),
        ("processor : 0\nBogoMIPS : 50\n", None),
        (None, None),
    ],
)
def test_the_processor_by_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, model: str | None
) -> None:
    monkeypatch.setattr(environment, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(environment, "tool_output", lambda *_: None)
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert environment.cpu_model() == model
    assert environment.platform_facts().get("cpu") == model


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVIDIA H200, 570.1, 1980 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 700.00 W"
    tool(tmp_path, monkeypatch, "nvidia-smi", f"echo '{line}'; echo '{line}'; echo 'unexpected'")
    first, second = environment.nvidia_gpus()
    assert first == second
    assert (first.name, first.driver, first.clocks["clocks.max.sm"]) == ("NVIDIA H200", "570.1", "1980 MHz")


@pytest.mark.parametrize("script", ["exit 9", "echo broken; exit 1", ""])
def test_a_tool_that_fails_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool(tmp_path, monkeypatch, "nvidia-smi", script)
    assert environment.nvidia_gpus() == []


def test_a_tool_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, "nvidia-smi", "exec sleep 600")
    monkeypatch.setattr(environment, "SECONDS", 0.1)
    assert environment.nvidia_gpus() == []


def test_packages_are_of_the_list_alone() -> None:
    found = environment.packages()
    assert "numpy" in found


IDENTITY = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Four commits on ``main``, the oldest first; the third is a merge of one from ``topic``."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in BRANCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q", "-b", "main")
    made = []
    for number in range(2):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", str(number))
        made.append(git(tmp_path, "rev-parse", "HEAD"))
    git(tmp_path, "checkout", "-q", "-b", "topic", made[0])
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "topic")
    git(tmp_path, "checkout", "-q", "main")
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "merge", "topic")
    made.append(git(tmp_path, "rev-parse", "HEAD"))
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "last")
    return [*made, git(tmp_path, "rev-parse", "HEAD")]


def test_who_comes_before_whom(line: list[str], tmp_path: Path) -> None:
    known = commits.ancestry(line[3])
    assert len(known) == 5
    assert [known[commit] for commit in line] == sorted((known[commit] for commit in line), reverse=True)
    assert known[line[3]] == 0
    assert set(commits.ancestry(line[1])) == set(line[:2])
    assert commits.commits_between(line[2], line[3]) == 1
    assert commits.commits_between(line[0], line[3]) == 4
    assert commits.current_commit() == line[3]


def test_the_branch_of_what_is_checked_out(line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commits.branch_of(line[3]) == "main"
    assert commits.branch_of(line[2]) is None
    assert commits.branch_of(None) is None
    git(tmp_path, "checkout", "-q", line[3])
    assert commits.branch_of(line[3]) is None
    monkeypatch.setenv("GITHUB_REF_NAME", "release")
    assert commits.branch_of(line[3]) == "release"
    monkeypatch.setenv("GITHUB_HEAD_REF", "topic")
    assert commits.branch_of(line[3]) == "topic"


@pytest.mark.parametrize("commit", [None, "", "HEAD", "--all", "a" * 39 + "\n", "a" * 65, "$(id)", "main"])
def test_only_hashes_are_given_to_git(line: list[str], commit: str | None) -> None:
    assert not commits.is_commit_hash(commit)
    assert commits.ancestry(commit) == {}
    assert commits.commits_between(line[0], commit or "") is None


def test_unknown_commits_and_no_repository(line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commits.ancestry("0" * 40) == {}
    assert commits.commits_between("0" * 40, line[0]) is None
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    monkeypatch.chdir(outside)
    assert commits.ancestry(line[0]) == {}
    assert commits.current_commit() is None
    assert commits.branch_of(line[0]) is None
