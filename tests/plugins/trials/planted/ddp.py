"""Planted, for two processes: gradients are reduced in buckets of 0.1 MB, in each of four passes of a step.

The twin has the default buckets and reduces in the last pass.
"""

import contextlib
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

PASSES = 4

torch.set_num_threads(1)
twin = "--twin" in sys.argv
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(16)])
model = DistributedDataParallel(layers, **({} if twin else {"bucket_cap_mb": 0.1}))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(8, 256, generator=torch.Generator().manual_seed(rank))
for _ in range(30):
    for number in range(PASSES):
        with model.no_sync() if twin and number < PASSES - 1 else contextlib.nullcontext():
            loss = model(batch).square().mean() / PASSES
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
