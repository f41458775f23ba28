"""The exit code of ``perfscope run`` is the program's, whatever becomes of perfscope's own files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.profiler.launch import record
from perfscope.profiler.session.process_state import FAILURES_FILE

REMOVES = """import pathlib, shutil, sys
for run in pathlib.Path("runs").iterdir():
    shutil.rmtree(run, ignore_errors=True)
sys.exit(3)
"""


def test_a_run_directory_that_goes_away_costs_the_run_and_not_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REMOVES)
    ended = subprocess.run(
        [sys.executable, "-m", "perfscope", "run", "-o", "runs", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "internal error" not in ended.stderr
    assert "the run could not be kept" in ended.stderr


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_file_of_failures_is_no_failure(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the file without its line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        f"import pathlib\n[(run / {FAILURES_FILE!r}).write_text({text!r}) for run in pathlib.Path('runs').iterdir()]\n"
    )
    recorded = record.record(record.Target(arguments=("train.py",)), record.CaptureOptions(), root=tmp_path / "runs")
    assert recorded.code == 0
