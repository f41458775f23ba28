"""What is open: keys that are no paths, folders that cannot be left, changes that are noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfscope.dashboards.server.shelf import KEY, Shelf
from perfscope.model.errors import DataError


def _file(path: Path, content: str = '{"traceEvents": []}') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_file_has_a_key_that_is_no_path(tmp_path: Path) -> None:
    shelf = Shelf([_file(tmp_path / "a b" / "träce (1).json")])
    (item,) = shelf.items()
    assert KEY.fullmatch(item.key)
    assert shelf.find(item.key) == item


@pytest.mark.parametrize(
    "key", ["../x", "..", "/etc/passwd", "", ".hidden", "a/b", "a\0b", "x" * 81, "%2e%2e", "trace.json"]
)
def test_other_keys_lead_nowhere(tmp_path: Path, key: str) -> None:
    assert Shelf([_file(tmp_path / "trace.json")]).find(key) is None


def test_equal_names_are_two_items(tmp_path: Path) -> None:
    shelf = Shelf([_file(tmp_path / "a" / "trace.json"), _file(tmp_path / "b" / "trace.json")])
    assert len(shelf.items()) == 2


def test_runs_of_a_folder_come_and_go(tmp_path: Path) -> None:
    runs = tmp_path / "perfscope-runs"
    _file(runs / "20260101-000000-a-0001" / "run.json", "{}")
    shelf = Shelf([runs])
    assert [item.title for item in shelf.items()] == ["20260101-000000-a-0001"]
    _file(runs / "20260102-000000-b-0002" / "run.json", "{}")
    assert [item.title for item in shelf.items()] == ["20260102-000000-b-0002", "20260101-000000-a-0001"]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere" / "20260103-000000-c-0003"
    _file(outside / "run.json", "{}")
    runs = tmp_path / "runs"
    _file(runs / "20260101-000000-a-0001" / "run.json", "{}")
    (runs / "20260103-000000-c-0003").symlink_to(outside)
    assert [item.title for item in Shelf([runs]).items()] == ["20260101-000000-a-0001"]


def test_a_change_is_noticed(tmp_path: Path) -> None:
    file = _file(tmp_path / "trace.json")
    (item,) = Shelf([file]).items()
    before = item.fingerprint()
    assert before == item.fingerprint()
    os.utime(file, ns=(1, 1))
    assert item.fingerprint() != before
    file.unlink()
    assert item.fingerprint() is None


def test_a_path_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Shelf([tmp_path / "nothing"])
