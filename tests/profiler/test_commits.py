"""What git knows of commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfscope.model import commits
from perfscope.model.environment import BRANCH_VARIABLES

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
