"""``%%perfscope`` in a real IPython shell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import warm
from tests.session.programs import environment

pytest.importorskip("IPython", reason="IPython is not installed")
pytestmark = pytest.mark.torch

SHELL = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("%load_ext perfscope")
shell.run_cell('''
import torch
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()
''')
for cell in CELLS:
    shell.run_cell("%%perfscope mine\\n" + cell)
print(shell.user_ns.get("kept"))
"""


def shell(folder: Path, *cells: str) -> list[str]:
    done = warm.run(
        [sys.executable, "-c", SHELL.replace("CELLS", repr(cells))],
        cwd=folder, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_cells_are_profiled_and_their_names_stay(tmp_path: Path) -> None:
    lines = shell(tmp_path, "train(14)\nkept = 3", "kept += 1", "raise KeyError('mine')")
    (shown,) = [line for line in lines if line.startswith("Out[")]
    assert "<Analysis of 'perfscope-runs/" in shown
    assert list((tmp_path / "perfscope-runs").glob("*-mine-*"))
    assert any(line.startswith("perfscope: nothing was captured: no steps were found") for line in lines)
    assert any("KeyError" in line for line in lines)
    assert lines[-1] == "4"
