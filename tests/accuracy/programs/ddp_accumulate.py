"""Data-parallel training with gradient accumulation."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = []
for _ in range(5):
    layers += [nn.Linear(320, 320), nn.ReLU()]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
accumulate = 4
torch.manual_seed(dist.get_rank())
for step in range(24):
    for micro_batch in range(accumulate):
        x = torch.randn(8, 320)
        loss = (model(x) - x).square().mean() / accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print("done")
dist.destroy_process_group()
