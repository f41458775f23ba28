"""Planted: autograd's anomaly detection was left on. The twin has it off."""

import sys

import torch

twin = "--twin" in sys.argv
torch.manual_seed(0)
torch.autograd.set_detect_anomaly(not twin)
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(40)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(8, 32)
for _ in range(60):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
