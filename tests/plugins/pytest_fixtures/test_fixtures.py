"""The fixtures of pytest as a project uses them: a test file of its own, run by pytest in another process."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from perfscope.plugins.pytest_fixtures.profiled import time_pairs
from tests.session.programs import environment

pytestmark = pytest.mark.torch

PROGRAM = """
import sys
import torch

model, total = torch.nn.Linear(8, 8), 0.0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(steps=14, read=False):
    global total
    for _ in range(steps):
        loss = model(torch.ones(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if read:
            total += loss.item()

if __name__ == "__main__":
    train(read="read" in sys.argv)
"""


def pytest_of(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    (folder / "test_speed.py").write_text(code)
    registered = any(entry.name == "perfscope" for entry in entry_points(group="pytest11"))
    plugin = () if registered else ("-p", "perfscope.plugins.pytest_fixtures.fixtures")  # a tree that is not installed
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", "test_speed.py"]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def test_what_holds_passes_and_a_failure_names_line_and_fix(tmp_path: Path) -> None:
    """In one process of pytest. A test of it fails at its last line, after those that hold."""
    done = pytest_of(
        tmp_path,
        "def test_script(perfscope_run):\n"
        "    run = perfscope_run('train.py', 'read')\n"
        "    run.assert_finding('host_sync', file='train.py', line=16)\n"
        "    assert run.step_ns > 0\n"
        "    run.assert_peak_below(1 << 30)\n"
        "    print('the script holds')\n"
        "    run.assert_no_finding('host_sync')\n"
        "def test_passes():\n"
        "    pass\n",
    )
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    for said in ("the script holds", "train.py:16", "Fix: Keep the value on the device"):
        assert said in done.stdout


@pytest.mark.slow
def test_functions_and_programs_that_are_missing(tmp_path: Path) -> None:
    """As above, for a function of the test's process and a program that does not exist."""
    done = pytest_of(
        tmp_path,
        "import train\n"
        "def test_function(perfscope_run):\n"
        "    run = perfscope_run(train.train, 16)\n"
        "    run.assert_no_finding('host_sync')\n"
        "    assert run.step_ns > 0\n"
        "    run.assert_peak_below(1 << 30)\n"
        "    print('the function holds')\n"
        "    run.assert_finding('host_sync')\n"
        "def test_broken(perfscope_run):\n"
        "    perfscope_run('missing.py')\n",
    )
    assert done.returncode == 1
    assert "2 failed" in done.stdout
    for said in ("the function holds", "host_sync found nothing", "missing.py ended with exit code 125"):
        assert said in done.stdout


def test_a_function_that_is_slower_is_named_and_equal_ones_are_not() -> None:
    def work(count: int) -> int:
        return sum(number * number for number in range(count))

    time_pairs(lambda: work(20_000), lambda: work(20_000)).assert_not_slower(0.5)
    with pytest.raises(AssertionError, match="slower by"):
        time_pairs(lambda: work(20_000), lambda: work(60_000)).assert_not_slower(0.5)
    with pytest.raises(ValueError, match="at least 2"):
        time_pairs(lambda: work(1), lambda: work(1), pairs=1)
