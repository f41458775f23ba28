"""Four processes that train with gloo, by DDP and FSDP2: a planted straggler, a planted input stall, and neither."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_path
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

planted, parallel, rank = *sys.argv[1:], int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")

class Rows(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        time.sleep(0.3 if (planted, rank) == ("input", 2) else 0)
        return torch.ones(64)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
if parallel == "ddp":
    model = DistributedDataParallel(model)
else:
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (4,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Rows(), batch_size=1):
    time.sleep(0.3)  # the same on every rank: what ranks that share cores lose to each other is little of it
    loss = model(batch).sum()
    time.sleep(0.3 if (planted, rank) == ("straggler", 1) else 0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


TORN = "terminate called without an active exception"
"""C++ ends a process so that leaves while a thread of it still runs: seen once, of four with gloo, and tried again."""


def captured(folder: Path, planted: str, parallel: str) -> Analysis:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    command = [sys.executable, "-m", "perfscope", "run", "--level", "light", "--no-report", "--", *launcher]
    for _ in range(2):
        done = subprocess.run(
            [*command, str(program), planted, parallel],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if TORN not in done.stderr:
            break
        shutil.rmtree(folder / "perfscope-runs", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    return analyze(load_path(folder / "perfscope-runs").traces, ["straggler", "input_stall"])


@pytest.mark.parametrize(("parallel", "operation"), [("ddp", "all_reduce"), ("fsdp2", "all_gather")])
def test_a_straggler_and_an_input_stall_are_found_and_nothing_where_nothing_is(
    tmp_path: Path, parallel: str, operation: str
) -> None:
    found = {}
    for planted in ("straggler", "input", "nothing"):
        folder = tmp_path / planted
        folder.mkdir()
        found[planted] = captured(folder, planted, parallel)

    (late,) = found["straggler"]["straggler"].findings
    assert (late.subject, late.ranks) == ("one rank comes late", (1,))
    assert {row["before"] for row in late.evidence} == {"host gap"}
    assert found["straggler"]["input_stall"].status == "clean"

    (late,) = found["input"]["straggler"].findings
    assert (late.subject, late.ranks) == ("one rank comes late", (2,))
    assert {row["before"] for row in late.evidence} == {"data loader"}
    (stall,) = found["input"]["input_stall"].findings
    assert stall.ranks == (2,)

    (job,) = found["nothing"].collectives.jobs
    assert (job.recorded, job.missing, job.unmatched) == ((0, 1, 2, 3), (), 0)
    assert operation in {kind.operation for kind in job.kinds}
    assert [found["nothing"][rule].status for rule in ("straggler", "input_stall")] == ["clean", "clean"]
