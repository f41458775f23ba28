"""The registry of reports, and writing them: whole or not at all."""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.dashboards.report import REPORTS, format_of, render, write
from perfscope.model.errors import DataError, UsageError
from tests.report.analyses import analysis


@pytest.mark.parametrize("form", REPORTS)
def test_every_report_renders_and_ends_its_last_line(form: str) -> None:
    text = render(analysis(), form)
    assert "host" in text
    assert text.endswith("\n")
    assert text == render(analysis(), form)


def test_the_list_is_sorted_and_knows_every_report_in_the_folder() -> None:
    assert list(REPORTS) == sorted(REPORTS)
    folder = Path(importlib.import_module("perfscope.dashboards.report").__file__ or "").parent
    with_render = {
        f"perfscope.dashboards.report.{file.stem}"
        for file in folder.glob("*.py")
        if file.stem != "__init__" and re.search(r"^def render\(\s*analysis", file.read_text(), re.MULTILINE)
    }
    assert with_render == set(REPORTS.values())


def test_unknown_format() -> None:
    with pytest.raises(UsageError, match=f"pdf: no such report format; there are {', '.join(REPORTS)}"):
        render(analysis(), "pdf")


@pytest.mark.parametrize(
    ("name", "form"),
    [("r.html", "html"), ("R.HTM", "html"), ("a/b.json", "json"), ("x.md", "markdown"), ("x.txt", "text"), ("x", None),
     ("x.pdf", None)],
)  # fmt: skip
def test_format_by_suffix(name: str, form: str | None) -> None:
    assert format_of(name) == form


def test_written_for_others_to_read_and_nothing_is_left_behind(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    before = os.umask(0o022)
    try:
        write(target, "one")
        write(target, "two é")
    finally:
        os.umask(before)
    assert target.read_text() == "two é"
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_keeps_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    write(target, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match=r"report\.html: cannot be written: no space left on device"):
        write(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written: no such file or directory"):
        write(tmp_path / "no" / "r.json", "x")


WRITERS = pytest.mark.parametrize("put", [write], ids=["report"])
"""Exports are put to the same tests (`tests/plugins/exports`)."""


@WRITERS
def test_a_pipe_gets_the_bytes_and_stays_a_pipe(put: Callable[[Path, str], None], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    put(pipe, "whole")
    reader.join(30)
    assert got == ["whole"]
    assert pipe.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


@WRITERS
def test_a_link_stays_and_its_file_is_replaced(put: Callable[[Path, str], None], tmp_path: Path) -> None:
    file, link = tmp_path / "kept" / "file.json", tmp_path / "link.json"
    file.parent.mkdir()
    file.write_text("old")
    link.symlink_to(file)
    put(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert [one.name for one in file.parent.iterdir()] == ["file.json"]


@WRITERS
def test_a_full_device_is_an_error_and_stays_a_device(put: Callable[[Path, str], None], tmp_path: Path) -> None:
    link = tmp_path / "full"  # a link: a writer that renames onto it would not harm the machine's own
    link.symlink_to("/dev/full")
    if not link.is_char_device():
        pytest.skip("no /dev/full here")
    with pytest.raises(DataError, match="full: cannot be written: no space left on device"):
        put(link, "text")
    assert link.is_symlink()
    assert link.is_char_device()
