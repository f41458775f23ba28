"""Outputs that go to devices, pipes and links: written to, never put in their place."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.dashboards.exports.files import whole_file
from perfscope.dashboards.reports import write
from perfscope.model.errors import DataError


def exported(path: Path, text: str) -> None:
    with whole_file(path) as stream:
        stream.write(text.encode())


WRITERS = pytest.mark.parametrize("put", [write, exported], ids=["report", "export"])


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


def test_a_packed_export_follows_its_link(tmp_path: Path) -> None:
    file, link = tmp_path / "real.gz", tmp_path / "link.json.gz"
    file.write_bytes(b"old")
    link.symlink_to(file)
    exported(link, "new")
    assert link.is_symlink()
    assert gzip.decompress(file.read_bytes()) == b"new"
