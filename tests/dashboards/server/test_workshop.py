"""Real children: what they make, how they fail, and that one that dies takes nothing along."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.server.kept import read_view
from perfscope.dashboards.server.shelf import Item, Shelf
from perfscope.dashboards.server.workshop import State, Workshop
from perfscope.dashboards.views import VIEWS

EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": {}},
    {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 12,
        "dur": 9,
        "args": {"device": 0, "stream": 7},
    },
]
PATIENCE_S = 60.0


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    made = Workshop(tmp_path / "cache")
    yield made
    made.close()


def _item(tmp_path: Path, content: str | None = None) -> Item:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}) if content is None else content)
    (item,) = Shelf([file]).items()
    return item


def _until(workshop: Workshop, item: Item, holds: Callable[[State], bool]) -> State:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        state = workshop.state(item)
        if holds(state):
            return state
        time.sleep(0.05)
    raise AssertionError(workshop.state(item))


def test_every_view_is_made(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    state = _until(workshop, item, lambda state: state.stage == "ready")
    assert state.folder is not None
    for name in VIEWS:
        held = read_view(state.folder, name)
        assert held is not None, name
        assert "view" in held, held
    assert state.folder.stat().st_mode & 0o077 == 0


def test_what_cannot_be_read_says_so_in_one_line(tmp_path: Path, workshop: Workshop) -> None:
    state = _until(workshop, _item(tmp_path, "this is no trace"), lambda state: state.stage == "failed")
    assert "trace.json" in state.told
    assert "\n" not in state.told


def test_a_second_server_shares_what_is_kept(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    _until(workshop, item, lambda state: state.stage == "ready")
    other = Workshop(tmp_path / "cache")
    assert other.state(item, start=False).stage == "ready"


def test_a_file_that_is_replaced_is_read_again_and_the_old_one_shown_meanwhile(
    tmp_path: Path, workshop: Workshop
) -> None:
    item = _item(tmp_path)
    first = _until(workshop, item, lambda state: state.stage == "ready").folder
    _item(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": EVENTS[:1]}))
    state = workshop.state(item)
    assert state.stale
    assert state.folder == first
    again = _until(workshop, item, lambda state: state.stage == "ready")
    assert again.folder != first


def test_a_file_that_is_gone_is_told_and_still_shown(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    first = _until(workshop, item, lambda state: state.stage == "ready").folder
    item.path.unlink()
    state = workshop.state(item)
    assert (state.stage, state.folder) == ("gone", first)


def test_a_child_that_is_killed_is_a_failure_and_can_be_asked_again(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    workshop.state(item)
    (child,) = workshop._children.values()
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    state = _until(workshop, item, lambda state: state.stage == "failed")
    assert "killed" in state.told
    workshop.again(item)
    assert _until(workshop, item, lambda state: state.stage == "ready").folder is not None


def test_reading_can_be_cancelled_and_begun_again(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    workshop.state(item)
    assert workshop.cancel(item)
    assert workshop.state(item).stage == "cancelled"
    assert not workshop.cancel(item)
    workshop.again(item)
    assert _until(workshop, item, lambda state: state.stage == "ready").folder is not None


def test_of_what_changes_again_and_again_two_are_kept(tmp_path: Path, workshop: Workshop) -> None:
    for at in range(4):
        event = dict(EVENTS[0], name=f"op_{at}")
        item = _item(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": [event] * (at + 1)}))
        _until(workshop, item, lambda state: state.stage == "ready")
    assert len(list((tmp_path / "cache").iterdir())) == 2
