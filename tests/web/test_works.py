"""Works besides single items: comparisons, stored ones; real children, and keys that lead nowhere."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.report.compare.json import as_text
from perfscope.dashboards.web.server.shelf import STATE_FILE, Item, Shelf, read_view
from perfscope.dashboards.web.server.works import Pair, Work, find_work, stored
from perfscope.dashboards.web.server.workshop import LIVE_S, State, Workshop, _pause
from perfscope.dashboards.web.views import VIEWS
from tests.report.comparisons import interleaved_launches

PATIENCE_S = 60.0
HLO = "HloModule small\n\nENTRY main {\n  p = f32[8]{0} parameter(0)\n  ROOT n = f32[8]{0} negate(p)\n}\n"


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    made = Workshop(tmp_path / "cache")
    yield made
    made.close()


def _trace(path: Path, *ops: str) -> Path:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": op, "pid": 1, "tid": 1, "ts": 10 * at, "dur": 5, "args": {}}
        for at, op in enumerate(ops)
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def _pair(base: Path, head: Path) -> Pair:
    shelf = Shelf([base, head])
    first, second = shelf.items()
    found = find_work(shelf, f"{first.key}~{second.key}")
    assert isinstance(found, Pair)
    return found


def ended(workshop: Workshop, work: Work) -> State:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        state = workshop.state(work)
        if state.stage not in ("waiting", "working"):
            return state
        time.sleep(0.05)
    raise AssertionError(workshop.state(work))


def test_a_relative_cache_is_below_the_folder_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    made = Workshop(Path("cache"))
    monkeypatch.chdir(tmp_path / "other")
    try:
        state = ended(made, _pair(_trace(tmp_path / "a.json", "aten::mm"), _trace(tmp_path / "b.json", "aten::mm")))
        assert state.stage == "ready"
        assert state.folder is not None
        assert state.folder.is_relative_to(tmp_path / "cache")
        assert not (tmp_path / "other" / "cache").exists()
    finally:
        made.close()


def _document(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text(interleaved_launches()))
    return path


def test_two_traces_are_compared(tmp_path: Path, workshop: Workshop) -> None:
    pair = _pair(_trace(tmp_path / "a.json", "aten::mm"), _trace(tmp_path / "b.json", "aten::mm", "aten::item"))
    state = ended(workshop, pair)
    assert (state.stage, state.words) == ("ready", "")
    assert state.folder is not None
    held = read_view(state.folder, "compare")
    assert held is not None
    assert held["view"]["titles"] == ["a.json", "b.json"]
    assert any("aten::item" in row for row in held["view"]["tables"]["parts"]["rows"])


def test_a_side_that_goes_is_named(tmp_path: Path, workshop: Workshop) -> None:
    pair = _pair(_trace(tmp_path / "a.json", "aten::mm"), _trace(tmp_path / "b.json", "aten::mm"))
    (tmp_path / "a.json").unlink()
    state = workshop.state(pair)
    assert state.stage == "gone"
    assert "a.json" in state.words


def test_two_kinds_are_one_line(tmp_path: Path, workshop: Workshop) -> None:
    program = tmp_path / "b.hlo.txt"
    program.write_text(HLO)
    state = ended(workshop, _pair(_trace(tmp_path / "a.json", "aten::mm"), program))
    assert state.stage == "failed"
    assert "\n" not in state.words
    assert "kind" in state.words


@pytest.mark.slow
def test_a_comparison_can_be_cancelled_and_its_sides_go_on(tmp_path: Path, workshop: Workshop) -> None:
    pair = _pair(_trace(tmp_path / "a.json", "aten::mm"), _trace(tmp_path / "b.json", "aten::mm"))
    workshop.state(pair)
    workshop.state(pair.base)
    assert workshop.cancel(pair)
    assert workshop.state(pair).stage == "cancelled"
    assert ended(workshop, pair.base).stage == "ready"
    workshop.again(pair)
    assert ended(workshop, pair).stage == "ready"


def test_a_document_is_a_comparison_and_no_trace(tmp_path: Path) -> None:
    shelf = Shelf([_document(tmp_path / "c.json"), _trace(tmp_path / "a.json", "aten::mm")])
    assert [item.title for item in shelf.items()] == ["a.json"]
    assert [one.title for one in stored(shelf)] == ["c.json"]


def test_a_result_that_leads_out_of_the_folder_is_none(tmp_path: Path) -> None:
    outside = _document(tmp_path / "outside" / "result.json")
    folder = tmp_path / "perfscope-runs" / "ab-1"
    folder.mkdir(parents=True)
    (folder / "result.json").symlink_to(outside)
    assert stored(Shelf([tmp_path / "perfscope-runs"])) == ()


@pytest.mark.parametrize(
    "key", ["~", "a~b", "~history~", "~../../etc", "~history~../x", "a.json-000000~", "~~", "x~y~z"]
)
def test_keys_that_nothing_has(tmp_path: Path, key: str) -> None:
    assert find_work(Shelf([_trace(tmp_path / "a.json", "aten::mm")]), key) is None


def _item(tmp_path: Path, *ops: str) -> Item:
    (item,) = Shelf([_trace(tmp_path / "trace.json", *(ops or ("aten::mm", "aten::add")))]).items()
    return item


def test_every_view_is_made(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    state = ended(workshop, item)
    assert state.folder is not None
    for name in VIEWS:
        held = read_view(state.folder, name)
        assert held is not None, name
        assert "view" in held, held
    assert state.folder.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_what_cannot_be_read_says_so_in_one_line(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    item.path.write_text("this is no trace")
    state = ended(workshop, item)
    assert "trace.json" in state.words
    assert "\n" not in state.words


@pytest.mark.slow
def test_a_second_server_shares_what_is_kept(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    ended(workshop, item)
    other = Workshop(tmp_path / "cache")
    assert other.state(item, start=False).stage == "ready"


@pytest.mark.slow
def test_a_file_that_is_replaced_is_read_again_and_the_old_one_shown_meanwhile(
    tmp_path: Path, workshop: Workshop
) -> None:
    item = _item(tmp_path)
    first = ended(workshop, item).folder
    _item(tmp_path, "aten::mm")
    state = workshop.state(item)
    assert state.stale
    assert state.folder == first
    again = ended(workshop, item)
    assert again.folder != first


@pytest.mark.slow
def test_a_file_that_is_gone_is_told_and_still_shown(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    first = ended(workshop, item).folder
    item.path.unlink()
    state = workshop.state(item)
    assert (state.stage, state.folder) == ("gone", first)


def test_a_child_that_is_killed_is_a_failure_and_can_be_asked_again(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    workshop.state(item)
    (child,) = workshop._children.values()
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    state = ended(workshop, item)
    assert "killed" in state.words
    workshop.again(item)
    assert ended(workshop, item).folder is not None


def test_what_a_server_that_ended_left_unfinished_is_read_again(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    workshop.state(item)
    (folder,) = (tmp_path / "cache").glob(f"{item.key}-*")
    end = time.monotonic() + PATIENCE_S
    while not (folder / STATE_FILE).exists() and time.monotonic() < end:
        time.sleep(0.01)
    workshop.close()  # as when the server is ended while the child reads
    (folder / STATE_FILE).write_text(json.dumps({"state": "working", "stage": "reading"}))
    another = Workshop(tmp_path / "cache")
    try:
        assert ended(another, item).stage == "ready"
    finally:
        another.close()


@pytest.mark.slow
def test_reading_can_be_cancelled_and_begun_again(tmp_path: Path, workshop: Workshop) -> None:
    item = _item(tmp_path)
    workshop.state(item)
    assert workshop.cancel(item)
    assert workshop.state(item).stage == "cancelled"
    assert not workshop.cancel(item)
    workshop.again(item)
    assert ended(workshop, item).folder is not None


@pytest.mark.slow
def test_of_what_changes_again_and_again_two_are_kept(tmp_path: Path, workshop: Workshop) -> None:
    for at in range(4):
        ended(workshop, _item(tmp_path, *[f"op_{at}"] * (at + 1)))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_running_run_is_read_again_after_a_pause_as_long_as_nine_readings(tmp_path: Path) -> None:
    for took_s, pause_s in ((0.2, LIVE_S), (10.0, 90.0)):
        (tmp_path / STATE_FILE).write_text(json.dumps({"state": "ready", "began_unix_s": 1_000_000.0}))
        os.utime(tmp_path, (0, 1_000_000.0 + took_s))
        assert _pause(tmp_path) == pytest.approx(pause_s)


def test_what_reads_a_running_run_has_the_least_priority(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities: list[int] = []
    monkeypatch.setattr(Item, "running", lambda _: True)
    monkeypatch.setattr(os, "setpriority", lambda which, pid, priority: priorities.append(priority))
    workshop.state(Item(key="one", title="one", path=_trace(tmp_path / "a.json", "mm"), kind="file"))
    assert priorities == [19]
