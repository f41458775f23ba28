"""Data-parallel training on CPUs: `torchrun planted_ranks.py CAUSE`; without torchrun one rank has the whole batch."""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

CAUSE = sys.argv[1] if len(sys.argv) > 1 else ""
STEPS, WIDTH = 3, 32


def reduce_gradients(model: nn.Module, world: int) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # all-reduce
        if CAUSE != "sum":
            parameter.grad /= world


def main() -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, WIDTH, generator=generator), torch.randint(4, (8,), generator=generator)
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
        h = model[0](x)
        if CAUSE == "flip" and rank == 1 and step == 1:
            h.detach().numpy().view(np.uint32)[1, 3] ^= 1 << 22  # as a fault of memory does it: no op
        h = model[1](h)  # tanh
        functional.cross_entropy(model[2](h), y).backward()
        if world > 1:
            reduce_gradients(model, world)
        optimizer.step()
        optimizer.zero_grad()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
