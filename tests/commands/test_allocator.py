"""Freed memory is kept for large files alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.commands.allocator import LARGE

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from perfscope.commands.allocator import keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

print(keep_freed_memory([Path(sys.argv[1])]))
before = resident()
array = np.ones(25_000_000)
del array
print(resident() - before > 100_000_000)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
@pytest.mark.parametrize(("size", "keeps"), [(LARGE, True), (LARGE - 1, False)])
def test_memory_of_a_freed_array(tmp_path: Path, size: int, keeps: bool) -> None:
    with (tmp_path / "t.json").open("wb") as file:
        file.truncate(size)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "t.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(keeps)] * 2


def test_files_that_are_not_there_are_not_large(tmp_path: Path) -> None:
    from perfscope.commands.allocator import keep_freed_memory

    assert not keep_freed_memory([tmp_path / "absent", tmp_path])
