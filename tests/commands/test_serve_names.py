"""What ``perfscope serve`` takes as the name of a run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("dash")
NAME = "20260101-000000-train-0001"


def _said(where: Path, name: str) -> str:
    """The first line that the command says; it is ended then."""
    line = [sys.executable, "-m", "perfscope", "serve", "--port", "0", "--offline", "--cache", str(where), name]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=where) as started:
        assert started.stderr is not None
        try:
            return started.stderr.readline()
        finally:
            started.terminate()


@pytest.fixture
def where(tmp_path: Path) -> Path:
    runs = tmp_path / "perfscope-runs"
    runs.mkdir()
    shutil.copytree(REPOSITORY / "fixtures" / "cpu-attention-sdpa", runs / NAME)
    (runs / "latest").symlink_to(NAME)
    return tmp_path


@pytest.mark.parametrize("name", ["latest", NAME[:12], f"perfscope-runs/{NAME}"])
def test_a_run_is_named_as_everywhere(where: Path, name: str) -> None:
    assert re.match(r"perfscope: open http://127\.0\.0\.1:\d+/\?token=", _said(where, name))


def test_what_is_not_there_is_one_line(where: Path) -> None:
    assert _said(where, "nowhere") == "perfscope: nowhere: no such file or folder\n"
