"""Four processes that train one model together, with gloo on the CPU.

    torchrun --nproc-per-node 4 -m perfscope.workloads.ranks --parallel fsdp2 --defect straggler

All ranks sleep as long in every step, as if they waited for a device: ranks that share cores then lose little to each
other, and what a defect adds is seen.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perfscope.workloads.options import help_of

DEFECTS = {
    "straggler": "rank 1 works longer than the others before its backward",
    "input": "rank 2's samples take longer",
}
PARALLEL = ("ddp", "fsdp2")
STEP_S, DEFECT_S = 0.3, 0.3
WIDTH = 64


class Rows(Dataset):
    """One row per sample. ``slow``: the sample takes long to make."""

    def __init__(self, count: int, slow: bool) -> None:
        self.count, self.slow = count, slow

    def __len__(self) -> int:
        """Number of samples."""
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        """A row of ones."""
        if self.slow:
            time.sleep(DEFECT_S)  # defect: input_stall, straggler
        return torch.ones(WIDTH)


def model_of(parallel: str) -> nn.Module:
    """A small perceptron."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
    if parallel == "ddp":
        return DistributedDataParallel(model)
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def train(defect: str | None, parallel: str, steps: int) -> None:
    """Trains ``steps`` steps on this rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    model = model_of(parallel)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Rows(steps, defect == "input" and rank == 2), batch_size=1):
        time.sleep(STEP_S)
        loss = model(batch).sum()
        if defect == "straggler" and rank == 1:
            time.sleep(DEFECT_S)  # defect: straggler: the others wait for it in their collectives
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()  # a rank that leaves while others still talk to it has hung now and then
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--defect", choices=DEFECTS, help=help_of(DEFECTS))
    parser.add_argument("--parallel", choices=PARALLEL, default=PARALLEL[0])
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    train(arguments.defect, arguments.parallel, arguments.steps)
