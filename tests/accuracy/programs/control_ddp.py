"""Accumulation with no_sync, one all-reduce per optimizer step."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
torch.manual_seed(dist.get_rank())
for step in range(20):
    for micro_batch in range(4):
        with model.no_sync() if micro_batch < 3 else contextlib.nullcontext():
            x = torch.randn(256, 256)
            ((model(x) - x).square().mean() / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
