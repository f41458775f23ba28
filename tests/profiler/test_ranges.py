"""Ranges that outlive a recording of torch's profiler: they must not close under another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.profiler.programs import captured, write

pytestmark = pytest.mark.torch

GUARDED = """
import torch
from torch.autograd.profiler import profile, record_function
from perfscope.profiler.torch.hooks import _replace
from perfscope.profiler.torch.hooks import RangeGuard

guard = RangeGuard()
undos = guard.install(_replace)

def recording():
    guard.started()
    return profile(use_cpu=True, use_kineto=True)

before, across, inside = record_function("before"), record_function("across"), record_function("inside")
before.__enter__()
with recording() as first:
    across.__enter__()
with recording() as second:
    with inside:
        torch.ones(3)
    across.__exit__(None, None, None)
    before.__exit__(None, None, None)
kept = len(guard._kept)
names = {event.name for event in second.function_events}
later = record_function("later")
with recording():
    later.__enter__()
later.__exit__(None, None, None)  # nothing records: torch may end it itself
assert not guard._kept[kept:]
for undo in undos:
    undo()
print(kept, "inside" in names, "across" in names)
"""

OVERLAPPING = """
import torch
from torch.profiler import record_function

parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.1)
open_ranges = []
for turn in range(14):
    open_ranges.append(record_function(f"epoch {turn} of a long name"))
    open_ranges[-1].__enter__()
    parameter.square().sum().backward()
    if len(open_ranges) > 3:
        open_ranges.pop(0).__exit__(None, None, None)
    optimizer.step()
print("done", len(open_ranges))
"""


def test_only_a_range_of_another_recording_is_left_open() -> None:
    done = subprocess.run([sys.executable, "-c", GUARDED], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True", "False"]


def test_a_program_with_ranges_over_several_passes_lives(tmp_path: Path) -> None:
    program = write(tmp_path, OVERLAPPING)
    for _ in range(3):
        done = captured(program, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "done 3\n"), done.stderr
