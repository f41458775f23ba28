"""Planted: the optimizer goes through its parameters one by one. The twin has a fused one."""

import sys

import torch

twin = "--twin" in sys.argv
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(24, 24) for _ in range(80)])
options = {"fused": True} if twin else {"foreach": False}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
batch = torch.randn(8, 24)
for _ in range(60):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
