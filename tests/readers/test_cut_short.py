"""A file that its writer cuts short while it is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfscope.analyzers.readers.file_bytes import READ_WHOLE, open_bytes
from tests.conftest import REPOSITORY

READ_LAST = """
import os, sys
from pathlib import Path
from perfscope.analyzers.readers.file_bytes import open_bytes
with open_bytes(Path(sys.argv[1])) as data:
    os.truncate(sys.argv[1], 0)
    data[len(data) - 1]
"""


def read_last(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", READ_LAST, str(path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def test_a_mapped_file_is_one_line_and_bad_data(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(READ_WHOLE + 1)
    ended = read_last(path)
    assert ended.returncode == 4
    (line,) = ended.stderr.splitlines()
    assert str(path) in line


def test_a_small_file_is_read_before_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    path.write_bytes(b"x" * 10_000)
    assert read_last(path).returncode == 0


def test_a_small_file_is_whole(tmp_path: Path) -> None:
    for size in (0, 1, 5, 6, 7, 5000):
        path = tmp_path / f"{size}"
        path.write_bytes(bytes(range(256)) * 20)
        content = path.read_bytes()[:size]
        path.write_bytes(content)
        with open_bytes(path) as data:
            assert data == content
