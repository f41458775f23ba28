"""Which pull request a job is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.dashboards.hosts.github_event import Run, read_event
from perfscope.model.errors import DataError

BASE = {"repo": {"full_name": "octo/model"}}


def pull_request(head: Any) -> dict[str, Any]:
    return {"number": 7, "pull_request": {"number": 7, "head": {"repo": head}, "base": BASE}}


def event(path: Path, held: Any) -> str:
    path.write_text(held if isinstance(held, str) else json.dumps(held))
    return str(path)


@pytest.mark.parametrize(
    ("head", "foreign"),
    [({"full_name": "octo/model"}, False), ({"full_name": "someone/model"}, True), (None, True)],
    ids=["own", "fork", "fork that is gone"],
)
def test_a_pull_request_says_its_number_and_whether_it_is_from_a_fork(tmp_path: Path, head: Any, foreign: bool) -> None:
    found = read_event(event(tmp_path / "event.json", pull_request(head)), "refs/heads/main")
    assert (found.number, found.foreign, found.run) == (7, foreign, None)


def test_a_comment_on_a_pull_request_and_on_an_issue(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    assert read_event(event(path, {"issue": {"number": 9, "pull_request": {}}}), None).number == 9
    assert read_event(event(path, {"issue": {"number": 9}}), None).number is None


def test_a_run_that_has_ended(tmp_path: Path) -> None:
    head = {"full_name": "someone/model", "owner": {"login": "someone"}}
    run = {"event": "pull_request", "head_sha": "a" * 40, "head_branch": "faster", "head_repository": head}
    # What the payload lists as its pull requests is empty for a fork, and not asked.
    found = read_event(
        event(tmp_path / "e.json", {"workflow_run": {**run, "pull_requests": [{"number": 1}]}}), "refs/pull/3/merge"
    )
    wanted = Run(sha="a" * 40, owner="someone", branch="faster", repository="someone/model", of_pull_request=True)
    assert (found.number, found.run) == (None, wanted)
    pushed = read_event(event(tmp_path / "e.json", {"workflow_run": {**run, "event": "push"}}), None)
    assert pushed.run is not None
    assert not pushed.run.of_pull_request


@pytest.mark.parametrize(
    ("ref", "number"),
    [
        ("refs/pull/12/merge", 12),
        ("refs/pull/12/head", 12),
        ("refs/heads/pull/12/merge", None),
        ("refs/pull/0/merge", None),
        ("refs/pull/12/merge/x", None),
        (None, None),
    ],
)
def test_without_an_event_the_ref_says_it(tmp_path: Path, ref: str | None, number: int | None) -> None:
    assert read_event(None, ref).number == number
    assert read_event(event(tmp_path / "event.json", {"action": "started"}), ref).number == number


@pytest.mark.parametrize(
    "held",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        {"workflow_run": {}},
        {"pull_request": {"number": 7}},
        {"workflow_run": None},
        {"issue": 3},
    ],
    ids=str,
)
def test_an_event_that_is_none(tmp_path: Path, held: Any) -> None:
    path = event(tmp_path / "event.json", held)
    with pytest.raises(DataError, match="event") as raised:
        read_event(path, None)
    assert str(raised.value).startswith(path)


def test_an_event_that_is_not_there_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_event(str(tmp_path / "nothing"), None)
    monkeypatch.setattr("perfscope.dashboards.hosts.github_event.MOST_BYTES", 10)
    with pytest.raises(DataError, match="an event of more than"):
        read_event(event(tmp_path / "event.json", pull_request(None)), None)
