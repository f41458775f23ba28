"""The data of the page of a history: series with their changes, bounded, nothing of a stranger but text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from perfscope.analyzers.compare.series import history
from perfscope.dashboards.views import history as shown
from perfscope.model.documents.stored_run import StoredRun
from tests.dashboards.test_history_reports import hostile, runs


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


def test_times_are_shown_unasked_and_others_when_they_change() -> None:
    (program,) = _view(runs())["programs"]
    assert {one["metric"]: one["plain"] for one in program["series"]} == {
        "step time": True,
        "host syncs a step": False,
    }
    assert all("<svg" in one["html"] and "<table>" in one["html"] for one in program["series"])


def test_many_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MOST_PROGRAMS", 2)
    monkeypatch.setattr(shown, "MOST_SERIES", 3)
    view = _view([run for name in "abc" for run in runs(4, name=name, uid=name, id=name)])
    assert len(view["programs"]) == 2
    assert view["programs_left"] == 1
    assert sum(len(one["series"]) for one in view["programs"]) == 3
    assert sum(one["left"] for one in view["programs"]) == 1


def test_an_empty_store() -> None:
    view = _view([])
    assert (view["runs"], view["programs"], view["metrics"]) == (0, [], [])


def test_strangers_texts_are_escaped() -> None:
    view = _view(hostile())
    drawn = "".join(one["moved"] + "".join(row["html"] for row in one["series"]) for one in view["programs"])
    assert view["programs"]
    assert not re.search(r"<(img|script)", drawn)
