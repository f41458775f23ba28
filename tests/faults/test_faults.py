"""A fault at each write of the cache and a run: nothing earlier is lost, and the next start is clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.faults.inject import EVENTS, PROGRAM_CODE
from tests.kept_runs import put_run

PROGRAM = f"""import pathlib, sys
import perfscope
pathlib.Path("started").touch()
for _ in range(40):
    perfscope.step()
sys.exit({PROGRAM_CODE})
"""


def prepare(name: str, folder: Path) -> None:
    """Prepare the folder before the first fault."""
    if name == "cache":
        events = [
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2.0 * index, "dur": 1.0,
             "args": {"device": 0, "stream": 7, "correlation": index}} for index in range(EVENTS)
        ]  # fmt: skip
        (folder / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    else:
        runs = folder / "perfscope-runs"
        for number, earlier in enumerate(("earlier", "other")):
            put_run(runs, number).rename(runs / earlier)
        (folder / "train.py").write_text(PROGRAM)


def injected(name: str, kind: str, folder: Path, every: int = 1, module: str = "tests.faults.inject") -> int:
    """How many writes were broken, one after the other."""
    places = {
        "PYTHONPATH": str(REPOSITORY),
        "PERFSCOPE_CACHE": str(folder / "cache"),
        "PERFSCOPE_STORE": str(folder / "store.sqlite"),
    }
    ended = subprocess.run(
        [sys.executable, "-m", module, name, kind, str(every), str(folder)],
        capture_output=True, text=True, check=False, env={**os.environ, **places}, timeout=900,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4_000:]
    return int(ended.stdout.split()[-2])


@pytest.mark.parametrize("kind", ["ENOSPC", "EACCES", "KILL"])
@pytest.mark.parametrize(
    ("name", "writes"),
    [("cache", 3), pytest.param("run", 5, marks=pytest.mark.slow)],
)
def test_a_fault_at_each_write(
    name: str, writes: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(name, tmp_path)
    assert injected(name, kind, tmp_path) >= writes


TRAIN = f"""import os, sys
from pathlib import Path
import torch
from tests.faults.inject import Fault
if "FAULT" in os.environ:
    kind, number, folder = os.environ["FAULT"].split(":")
    Fault(kind, int(number), Path(folder)).arm()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
sys.exit({PROGRAM_CODE})
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("kind", ["ENOSPC", "EACCES", "KILL"])
def test_a_fault_at_writes_inside_the_profiled_program(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    runs = tmp_path / "perfscope-runs"
    earlier = put_run(runs, 0)
    before = {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()}

    def launched(number: int) -> int:
        fault = {"FAULT": f"{kind}:{number}:{runs}"} if number else {}
        return subprocess.run(
            [sys.executable, "-m", "perfscope", "run", "-q", "--no-report", "train.py"],
            cwd=tmp_path, capture_output=True, check=False, timeout=120,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **fault},
        ).returncode  # fmt: skip

    for number in (1, 2, 3, 5, 8, 12):
        assert launched(number) == (137 if kind == "KILL" else PROGRAM_CODE), f"write {number}"
    assert {path: path.read_bytes() for path in before} == before
    assert launched(0) == PROGRAM_CODE
