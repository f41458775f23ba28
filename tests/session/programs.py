"""Programs of users, and how tests run them: under plain python and under ``perfscope run``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Capture, Process, Run
from tests import warm
from tests.conftest import REPOSITORY

LOOP = """
import sys
import torch

def work(turns, after=lambda: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for turn in range(turns):
        loss = model(torch.randn(8, 16)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()
    return model, loss
"""
"""A training loop without perfscope; a test's program continues from here."""

SECONDS = 120


def environment(**more: str) -> dict[str, str]:
    """This process's environment, able to import perfscope from the checkout, with one thread for torch."""
    held = {name: value for name, value in os.environ.items() if not name.startswith("PERFSCOPE_")}
    return {**held, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **more}


def plain(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS``."""
    options.setdefault("env", environment())
    options.setdefault("timeout", SECONDS)
    return warm.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, **options)


def captured(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """``perfscope run --no-report ARGUMENTS``."""
    return plain("-m", "perfscope", "run", "--no-report", *arguments, cwd=cwd, **options)


def start(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """The same, not waited for."""
    return warm.Popen(
        [sys.executable, "-m", "perfscope", "run", "--no-report", *arguments],
        cwd=cwd,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def write(folder: Path, text: str, name: str = "train.py") -> str:
    """Put a program there; its name."""
    (folder / name).write_text(text)
    return name


def latest(folder: Path) -> Run:
    """The run that was made last below ``folder``."""
    return run_folders.read(folder / "perfscope-runs" / "latest")


def only(folder: Path) -> Process:
    """Its one process with steps."""
    (process,) = latest(folder).processes
    return process


def passes(process: Process) -> dict[str, Capture]:
    """Its captures by pass, without the list of tensors, which is stored separately."""
    beside = ("torch_tensors", "python_stacks", "step_counters")  # a loop of a few ms may end before the first sample
    return {capture.pass_name: capture for capture in process.captures if capture.tool not in beside}
