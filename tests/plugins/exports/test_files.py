"""Files of exports are written as reports are: in full or not at all, through links and pipes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.plugins.exports.files import whole_file
from tests.report import test_writing as reports


def exported(path: Path, text: str) -> None:
    with whole_file(path) as stream:
        stream.write(text.encode())


@pytest.mark.parametrize(
    "check",
    [
        reports.test_a_pipe_gets_the_bytes_and_stays_a_pipe,
        reports.test_a_link_stays_and_its_file_is_replaced,
        reports.test_a_full_device_is_an_error_and_stays_a_device,
    ],
)
def test_what_holds_for_reports(check: Callable[[Callable[[Path, str], None], Path], None], tmp_path: Path) -> None:
    check(exported, tmp_path)


def test_a_packed_export_follows_its_link(tmp_path: Path) -> None:
    file, link = tmp_path / "real.gz", tmp_path / "link.json.gz"
    file.write_bytes(b"old")
    link.symlink_to(file)
    exported(link, "new")
    assert link.is_symlink()
    assert gzip.decompress(file.read_bytes()) == b"new"
