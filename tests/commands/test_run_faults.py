"""The exit code of ``perfscope run`` is the program's, whatever becomes of perfscope's own files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.model.documents.run import FAILURES_FILE
from perfscope.profiler.launch import record
from perfscope.profiler.session.passes import Pass
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.profiler import TorchProfilerCapture

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


def test_inherited_files_stay_open(tmp_path: Path) -> None:
    """As ``<(command)`` of a shell gives them."""
    (tmp_path / "train.py").write_text("import os, sys\nsys.exit(int(os.read(int(sys.argv[1]), 1)))\n")
    reading, writing = os.pipe()
    os.write(writing, b"7")
    os.close(writing)
    ended = subprocess.run(
        [sys.executable, "-m", "perfscope", "run", "train.py", str(reading)],
        cwd=tmp_path, capture_output=True, timeout=120, check=False, pass_fds=(reading,),
    )  # fmt: skip
    os.close(reading)
    assert ended.returncode == 7


def test_a_profiler_is_stopped_whatever_fails_before(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = TorchProfilerCapture(Pass(tool="torch_profiler", name="timing", count=1, suffix=".json.gz"))
    capture.start(0)
    monkeypatch.setattr("json.dumps", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        capture.stop(None, None)
    assert not compat.profiler_records()
