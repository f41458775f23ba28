"""Planted programs: the intervention that answers the defect gains what the fixed twin gains.

Each takes two to ten minutes of launches, by how busy the machine is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.plugins.trials.command import PAIRS
from perfscope.plugins.trials.document import Trial, Try, load
from tests.plugins.trials.twins import PLANTED, twin_against
from tests.session.programs import environment

SECONDS = 3600

pytestmark = [pytest.mark.slow]


def tried(program: str, folder: Path, *options: str) -> Try:
    """`perfscope try` of a planted program, in a separate process."""
    line = [sys.executable, "-m", "perfscope", "try", "-q", "-o", str(folder), *options, program]
    done = subprocess.run(
        line, cwd=PLANTED, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    (kept,) = folder.glob("try-*")
    return load(kept)


def only(document: Try, name: str) -> Trial:
    (trial,) = [trial for trial in document.trials if trial.name == name]
    return trial


DEFECTS = [
    pytest.param("loop_optimizer.py", "fused-optimizer", marks=pytest.mark.torch),
    pytest.param("slow_loader.py", "loader-workers", marks=pytest.mark.torch),
    pytest.param("anomaly.py", "debug-off", marks=pytest.mark.torch),
    pytest.param(
        "eager_chain.py",
        "compile",
        marks=[pytest.mark.torch, pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")],
    ),
    pytest.param("gc_storm.py", "gc-freeze", marks=pytest.mark.torch),
    pytest.param("op_by_op.py", "jax-debug-off", marks=pytest.mark.jax),
]


@pytest.mark.parametrize(("program", "name"), DEFECTS)
def test_the_gain_is_that_of_the_fixed_twin(program: str, name: str, tmp_path: Path) -> None:
    document = tried(program, tmp_path, "--only", name)
    trial = only(document, name)
    assert (trial.state, trial.reason) == ("gain", "")
    assert trial.answers, "a finding, or a sign of its launches, leads to it"
    assert trial.results is not None
    assert trial.results.state == "same"
    twin = twin_against(program, tmp_path / "twin", pairs=PAIRS, estimator=trial.estimator)
    assert None not in (trial.low, trial.high, twin.low, twin.high)
    assert trial.low <= twin.high  # type: ignore[operator]
    assert twin.low <= trial.high  # type: ignore[operator]


@pytest.mark.torch
def test_harmless_changes_gain_nothing(tmp_path: Path) -> None:
    names = ("zero-grad-none", "matmul-high", "gc-freeze")
    options = ("--no-profile", "--least", "10")
    document = tried("steady.py", tmp_path, "--only", ",".join(names), *options)
    assert [trial.name for trial in document.trials] == list(names)
    assert [trial.state for trial in document.trials] == ["no gain"] * 3


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "name"), [("loop_optimizer.py", "autocast-bf16"), ("double.py", "float32-default")]
)
def test_what_changes_results_is_rejected(program: str, name: str, tmp_path: Path) -> None:
    trial = only(tried(program, tmp_path, "--only", name, "--no-profile", "--calibration", "0"), name)
    assert (trial.state, trial.pairs) == ("rejected", 0)
    assert trial.results is not None
    assert (trial.results.state, trial.results.first_step) == ("different", 0)
    assert trial.results.layer == "0"
