"""The way the distributed tutorial starts its processes."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def run_rank(rank, size, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
    dist.init_process_group("gloo", rank=rank, world_size=size)
    model = nn.parallel.DistributedDataParallel(nn.Linear(48, 48))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(16, 48)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run_rank, args=(2, str(29800 + os.getpid() % 150)), nprocs=2)
    print("both ranks are done")
