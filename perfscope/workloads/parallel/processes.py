"""The processes of a program that torchrun started: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def processes(device: str) -> Iterator[tuple[int, int]]:
    """Rank of this process, and number of all; one thread each. ``device``: ``cpu`` or ``cuda``."""
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    yield dist.get_rank(), dist.get_world_size()
    dist.barrier()  # a rank that leaves while others still talk to it has hung now and then
    dist.destroy_process_group()


def summed(losses: list[torch.Tensor]) -> list[torch.Tensor]:
    """The sum of all processes for each loss."""
    whole = torch.stack(losses)
    dist.all_reduce(whole)
    return list(whole)
