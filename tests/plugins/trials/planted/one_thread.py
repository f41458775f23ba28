"""Planted: one thread for large matrix products. The twin has one for each processor."""

import os
import sys

import torch

torch.set_num_threads(len(os.sched_getaffinity(0)) if "--twin" in sys.argv else 1)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(512, 512)
for _ in range(30):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
