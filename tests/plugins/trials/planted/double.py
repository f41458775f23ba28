"""Planted: everything is computed in float64. The twin takes float32, which changes the last digits."""

import sys

import torch

torch.manual_seed(0)
torch.set_default_dtype(torch.float32 if "--twin" in sys.argv else torch.float64)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(512, 256)
for _ in range(30):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
