"""A projection into large scratch buffers, with deterministic algorithms required."""

import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(24):
    scratch = torch.empty(6000, 1024)
    x = torch.randn(96, 64)
    scratch[:96, :64] = x
    loss = (model(scratch[:96, :64]) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
