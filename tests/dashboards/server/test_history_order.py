"""A history is in the order of what is checked out, or of the newest run's commits; either change makes it anew."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.dashboards.server import works
from perfscope.dashboards.server.prepare_history import main
from perfscope.dashboards.server.works import Kept
from perfscope.profiler.store.runs import RunStore
from tests.commands.kept_runs import repository
from tests.profiler.run_store.records import stored
from tests.profiler.test_commits import git


def _stored(folder: Path, commits: list[str]) -> Path:
    """A store of a run a commit, in another order than git's."""
    folder.mkdir(exist_ok=True)
    held = RunStore(folder / "store.sqlite")
    for number, commit in enumerate(reversed(commits)):
        held.put(replace(stored(number, step_ns=1e7), commit=commit, dirty=False))
    return folder / "store.sqlite"


def _ordered(store: Path, folder: Path) -> str:
    folder.mkdir()
    assert main([str(store), str(folder)]) == 0
    view = json.loads((folder / "history.json").read_text())["view"]
    assert view["runs"] > 1
    return str(view["ordered"])


def test_commits_are_in_the_order_of_what_is_checked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = repository(tmp_path, monkeypatch, 3)
    store = _stored(tmp_path / "perfscope-runs", commits)
    assert _ordered(store, tmp_path / "made") == (
        f"Commits in the order of git, up to what is checked out ({commits[-1][:10]})."
    )


def test_of_another_branch_the_newest_run_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = repository(tmp_path, monkeypatch, 3)
    store = _stored(tmp_path / "perfscope-runs", commits[::-1])  # the last commit's run is the newest
    git(tmp_path, "checkout", "-q", commits[0])
    assert f"up to the newest run ({commits[-1][:10]})" in _ordered(store, tmp_path / "made")


def test_outside_of_a_repository_that_of_the_store_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "project"
    home.mkdir()
    commits = repository(home, monkeypatch, 2)
    store = _stored(home / "perfscope-runs", commits)
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    line = [sys.executable, "-m", "perfscope.dashboards.server.prepare_history", str(store), str(made)]
    subprocess.run(line, cwd=tmp_path, check=True)
    told = json.loads((made / "history.json").read_text())["view"]["ordered"]
    assert f"what is checked out ({commits[-1][:10]})" in told


def test_without_git_time_is_the_order_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "in the order of time" in _ordered(_stored(tmp_path / "runs", ["a" * 40, "b" * 40]), tmp_path / "made")


def test_another_commit_or_run_makes_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works, "HEAD_S", 1e-9)  # asked each time
    commits = repository(tmp_path, monkeypatch, 2)
    kept = Kept(path=_stored(tmp_path / "perfscope-runs", commits))
    first = kept.fingerprint()
    assert kept.fingerprint() == first
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "more")
    second = kept.fingerprint()
    assert second != first
    RunStore(kept.path).put(stored(9, step_ns=1e7))
    assert kept.fingerprint() != second
