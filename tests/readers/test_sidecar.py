"""Sidecars: the same trace again, and never a stale, damaged or foreign one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.readers import cache as _sidecar
from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.model.trace import Trace
from tests.readers.test_kineto import events, text


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_sidecar, "SMALLEST", 1)
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "trace.json"
    found.write_text(text(events()))
    return found


def equal(first: Trace, second: Trace) -> None:
    assert first.source == second.source
    assert first.strings == second.strings
    assert first.recorded == second.recorded
    for name, rows in first.rows.items():
        for column in rows:
            np.testing.assert_array_equal(rows[column], second.rows[name][column])


def test_the_second_opening_gives_the_same_trace(cache: Path, path: Path) -> None:
    first = kineto_reader.read(path)
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    loaded = _sidecar.load(path)
    assert loaded is not None
    equal(first, loaded)
    equal(first, kineto_reader.read(path))


def test_a_changed_file_is_read_anew(cache: Path, path: Path) -> None:
    kineto_reader.read(path)
    path.write_text(text(events()[:-1]))
    os.utime(path, ns=(1, 1))
    assert _sidecar.load(path) is None
    assert kineto_reader.read(path).source.events_read == len(events()) - 1


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "garbage"])
def test_a_damaged_sidecar_is_ignored_and_written_anew(cache: Path, path: Path, damage: str) -> None:
    first = kineto_reader.read(path)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(
        {
            "cut": whole[: len(whole) * 2 // 3],
            "empty": b"",
            "foreign": b"x" * 4096,
            "garbage": whole[:-2000] + b"\xff" * 2000,
        }[damage]
    )
    equal(first, kineto_reader.read(path))
    assert kept.read_bytes() == whole


def test_another_model_is_not_taken_for_this_one(cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kineto_reader.read(path)
    monkeypatch.setattr(_sidecar, "READER_VERSION", _sidecar.READER_VERSION + 1)
    assert _sidecar.load(path) is None


def test_the_longest_unused_make_room(cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    old = cache / "old.columns"
    old.write_bytes(b"x" * 1000)
    os.utime(old, (1, 1))
    monkeypatch.setattr(_sidecar, "ROOM", 1000)
    kineto_reader.read(path)
    assert not old.exists()
    assert len(list(cache.iterdir())) == 1


def test_off_or_unwritable_costs_nothing(cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFSCOPE_CACHE", "off")
    kineto_reader.read(path)
    assert not cache.exists()
    blocked = path.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("PERFSCOPE_CACHE", str(blocked / "below"))
    assert kineto_reader.read(path).source.events_read == len(events())
