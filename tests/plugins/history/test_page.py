"""The data of the page of a history: series with their changes, bounded, nothing of a stranger but text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.dashboards.web.server.child import main
from perfscope.dashboards.web.server.shelf import Shelf, read_view
from perfscope.dashboards.web.server.works import find_work
from perfscope.dashboards.web.server.workshop import Workshop
from perfscope.plugins.history import view as shown
from perfscope.plugins.history import works
from perfscope.plugins.history.figure import metric_history
from perfscope.plugins.history.series import history
from perfscope.plugins.history.store.runs import RunStore
from perfscope.plugins.history.stored_run import StoredRun
from perfscope.plugins.history.works import Kept
from tests.kept_runs import repository
from tests.plugins.history.records import stored_run
from tests.plugins.history.test_report import hostile, runs
from tests.session.test_environment import git
from tests.web.test_works import ended


def _view(held: list[StoredRun]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(shown.view_of(history(held)), allow_nan=False))
    return made


def test_a_change_is_named_with_its_commits() -> None:
    held = runs()
    view = _view(held)
    (program,) = view["programs"]
    assert (view["runs"], program["runs"]) == (len(held), len(held))
    assert view["changed"] == 1
    found = history(held)
    (change,) = next(one for one in found.series if one.metric == "step time").changes
    assert change.before.commit is not None
    assert change.before.commit[:12] in program["moved"]
    assert (change.after.commit or "?")[:12] in program["moved"]


def test_a_row_has_its_ends_and_its_course_with_a_mark_per_change() -> None:
    (program,) = _view(runs())["programs"]
    rows = {one["metric"]: one for one in program["series"]}
    assert set(rows) == {"step time", "host syncs per step"}
    step = rows["step time"]
    assert (step["runs"], step["first"]) == (len(runs()), step["points"][0]["said"])
    assert step["newest"] == step["points"][-1]["said"]
    assert step["change"].startswith("+")
    assert step["spark"].count("<line") == len(step["changes"]) == 1
    assert len(re.findall(r"[\d.]+,[\d.]+", step["spark"])) == len(runs())
    assert rows["host syncs per step"]["change"] == ""
    assert all(len(one["points"]) == len(runs()) and "<table" in one["html"] for one in program["series"])


def test_many_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MOST_PROGRAMS", 2)
    monkeypatch.setattr(shown, "MOST_SERIES", 3)
    view = _view([run for name in "abc" for run in runs(4, name=name, uid=name, id=name)])
    assert len(view["programs"]) == 2
    assert view["programs_left"] == 1
    assert sum(len(one["series"]) for one in view["programs"]) == 3
    assert sum(one["left"] for one in view["programs"]) == 1


def test_strangers_texts_are_escaped() -> None:
    view = _view(hostile())
    drawn = "".join(one["moved"] + "".join(row["html"] for row in one["series"]) for one in view["programs"])
    assert view["programs"]
    assert not re.search(r"<(img|script)", drawn)


def _stored(folder: Path, commits: list[str]) -> Path:
    """A store of a run a commit, in another order than git's."""
    folder.mkdir(exist_ok=True)
    held = RunStore(folder / "store.sqlite")
    for number, commit in enumerate(reversed(commits)):
        held.put(replace(stored_run(number, step_ns=1e7), commit=commit, dirty=False))
    return folder / "store.sqlite"


def _ordered(store: Path, folder: Path) -> str:
    folder.mkdir()
    assert main(["history", str(store), str(folder)]) == 0
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
    line = [sys.executable, "-m", "perfscope.dashboards.web.server.child", "history", str(store), str(made)]
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
    RunStore(kept.path).put(stored_run(9, step_ns=1e7))
    assert kept.fingerprint() != second


def test_the_figure_has_each_run_and_marks_the_change_with_its_commit() -> None:
    held = runs()
    (program,) = _view(held)["programs"]
    series = next(one for one in program["series"] if one["metric"] == "step time")
    links = [str(number) for number in range(len(held))]
    figure = metric_history(series, links)
    assert [round(1e6 * value) for value in figure.data[0].y] == [round(point["value"]) for point in series["points"]]
    assert list(figure.data[0].customdata) == links
    (change,) = series["changes"]
    assert figure.layout.shapes[0].x0 == change["index"] - 0.5
    assert series["points"][change["index"]]["commit"][:8] in figure.layout.annotations[0].text


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    made = Workshop(tmp_path / "cache")
    yield made
    made.close()


def test_the_history_of_a_store(tmp_path: Path, workshop: Workshop) -> None:
    folder = tmp_path / "perfscope-runs"
    folder.mkdir()
    shelf = Shelf([folder])
    assert works.works(shelf) == ()
    held = RunStore(folder / "store.sqlite")
    for run in runs():
        held.put(run)
    before = (folder / "store.sqlite").read_bytes()
    (kept,) = works.works(shelf)
    assert find_work(shelf, kept.key) == kept
    state = ended(workshop, kept)
    assert state.folder is not None
    found = read_view(state.folder, "history")
    assert found is not None
    assert found["view"]["runs"] == len(runs())
    assert (folder / "store.sqlite").read_bytes() == before


def test_a_damaged_store_is_one_line(tmp_path: Path, workshop: Workshop) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"no database" * 100)
    state = ended(workshop, Kept(path=tmp_path / "store.sqlite"))
    assert state.stage == "failed"
    assert "store.sqlite" in state.words
    assert "\n" not in state.words
