"""Two ranks; one of them gets the long sentences."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
length = 1200 if rank == 1 else 60
for step in range(24):
    x = torch.randn(4, length, 128)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
