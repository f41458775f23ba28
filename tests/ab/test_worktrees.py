"""Worktrees of two commits, with a real git."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from perfscope.model.documents import run_folders
from perfscope.model.documents.ab import WORKTREES_PREFIX
from perfscope.model.errors import DataError, UsageError
from perfscope.profiler.ab import worktrees as ab_worktrees
from perfscope.profiler.ab.worktrees import TerminatedError, checkout, terminated_by_signals, worktrees
from tests.ab.repositories import commit, git, repository


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A repository of two commits as current folder, with a separate folder for temporary files."""
    found = repository(tmp_path / "code")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.chdir(tmp_path / "code")
    return found


def left(tmp_path: Path) -> list[str]:
    """Worktrees next to the checkout, and files in the temporary folder."""
    listed = git(tmp_path / "code", "worktree", "list", "--porcelain").splitlines()
    held = [line for line in listed if line.startswith("worktree ")][1:]
    return held + [path.name for path in (tmp_path / "scratch").iterdir()]


def test_both_commits_lie_side_by_side_and_the_checkout_is_not_touched(
    tmp_path: Path, commits: tuple[str, str]
) -> None:
    (tmp_path / "code" / "work.py").write_text("changed and not committed")
    with worktrees(checkout(), {"base": commits[0], "head": commits[1]}) as places:
        assert "0.004" in (places["base"].folder / "work.py").read_text()
        assert "0.012" in (places["head"].folder / "work.py").read_text()
        assert not places["base"].root.is_relative_to(tmp_path / "code")
    assert (tmp_path / "code" / "work.py").read_text() == "changed and not committed"
    assert left(tmp_path) == []


def test_they_are_outside_of_the_checkout_where_temporary_files_are_inside(
    tmp_path: Path, commits: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "code" / "scratch"
    inside.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(inside))
    with worktrees(checkout(), {"base": commits[0], "head": commits[1]}) as places:
        assert not places["base"].root.is_relative_to(tmp_path / "code")
    assert list(inside.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, TerminatedError(signal.SIGTERM), RuntimeError])
def test_they_are_gone_however_it_ends(
    tmp_path: Path, commits: tuple[str, str], error: type[BaseException] | BaseException
) -> None:
    with pytest.raises(BaseException), worktrees(checkout(), {"base": commits[0], "head": commits[1]}):  # noqa: PT012, B017
        assert len(left(tmp_path)) == 3
        raise error
    assert left(tmp_path) == []


def test_a_worktree_of_the_users_own_stays(tmp_path: Path, commits: tuple[str, str]) -> None:
    git(tmp_path / "code", "worktree", "add", "-q", "--detach", str(tmp_path / "own"))
    with worktrees(checkout(), {"base": commits[0], "head": commits[1]}):
        pass
    assert len(left(tmp_path)) == 1
    assert (tmp_path / "own" / "work.py").exists()


def test_what_a_killed_process_left_registered_is_taken_away(tmp_path: Path, commits: tuple[str, str]) -> None:
    lost = tmp_path / "scratch" / f"{WORKTREES_PREFIX}dead"
    git(tmp_path / "code", "worktree", "add", "-q", "--detach", str(lost / "base"))
    with run_folders.alive(lost):
        ab_worktrees.remove_left(checkout())
        assert len(left(tmp_path)) == 2, "it is in use"
    ab_worktrees.remove_left(checkout())
    assert left(tmp_path) == []
    git(tmp_path / "code", "worktree", "add", "-q", "--detach", str(lost / "base"))
    shutil.rmtree(lost)
    ab_worktrees.remove_left(checkout())
    assert left(tmp_path) == []


def test_a_folder_below_the_top_is_found_in_both(
    tmp_path: Path, commits: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "code" / "jobs"
    below.mkdir()
    (below / "run.py").write_text("pass")
    head = commit(tmp_path / "code")
    monkeypatch.chdir(below)
    with worktrees(checkout(), {"base": head, "head": head}) as places:
        assert (places["base"].folder / "run.py").exists()
        assert places["base"].folder.parent == places["base"].root
    with pytest.raises(UsageError, match="jobs: no such folder"), worktrees(checkout(), {"base": commits[0]}):
        pass
    assert left(tmp_path) == []


def test_files_that_git_does_not_track_are_told_and_can_be_linked(tmp_path: Path, commits: tuple[str, str]) -> None:
    code = tmp_path / "code"
    (code / "data").mkdir()
    (code / "data" / "tokens.bin").write_text("x")
    (code / "work.py").write_text("changed")
    said = checkout().remarks()
    assert any("not committed" in line and "work.py" in line for line in said)
    assert any("--link PATH" in line and "data/" in line for line in said)
    with worktrees(checkout(), {"base": commits[0]}, links=["data"]) as places:
        assert (places["base"].folder / "data" / "tokens.bin").read_text() == "x"
    assert (code / "data" / "tokens.bin").exists(), "the link went, not what it led to"


@pytest.mark.parametrize("link", ["nothing", "../elsewhere", "/etc/hostname", "work.py"])
def test_a_link_that_cannot_be_is_refused(tmp_path: Path, commits: tuple[str, str], link: str) -> None:
    with pytest.raises(UsageError, match="--link"), worktrees(checkout(), {"base": commits[0]}, links=[link]):
        pass
    assert left(tmp_path) == []


def test_refs(tmp_path: Path, commits: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    here = checkout()
    assert here.commit("HEAD") == commits[1]
    assert here.commit("HEAD~1") == here.commit(commits[0][:10]) == commits[0]
    for ref in ("no-such", "--all", ""):
        with pytest.raises(UsageError, match="not a commit"):
            here.commit(ref)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not in a git checkout"):
        checkout()


def test_a_commit_that_git_cannot_check_out_is_one_clear_error(tmp_path: Path, commits: tuple[str, str]) -> None:
    with pytest.raises(DataError, match="git made no worktree"), worktrees(checkout(), {"base": "0" * 40}):
        pass
    assert left(tmp_path) == []


def test_submodules_come_from_the_checkouts_own_copy(tmp_path: Path, commits: tuple[str, str]) -> None:
    repository(tmp_path / "library", base="OLD = 1\n", head="NEW = 1\n")
    code = tmp_path / "code"
    git(code, "submodule", "add", "-q", str(tmp_path / "library"), "lib")
    head = commit(code)
    (tmp_path / "library").rename(tmp_path / "gone")
    before = git(code, "config", "--local", "--list")
    with worktrees(checkout(), {"base": commits[0], "head": head}) as places:
        assert not (places["base"].folder / "lib").exists()
        assert (places["head"].folder / "lib" / "work.py").read_text() == "NEW = 1\n"
    assert left(tmp_path) == []
    assert git(code, "config", "--local", "--list") == before
    assert git(code, "status", "--porcelain") == ""


def test_hooks_do_not_run(tmp_path: Path, commits: tuple[str, str]) -> None:
    hook = tmp_path / "code" / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    with worktrees(checkout(), {"base": commits[0]}):
        pass
    assert not (tmp_path / "ran").exists()


def test_sigterm_is_an_end_that_can_be_cleaned_up_after() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TerminatedError) as ended, terminated_by_signals():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert ended.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
