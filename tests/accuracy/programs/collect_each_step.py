"""Somebody fought an out-of-memory error."""

import gc

import torch
from torch import nn

torch.manual_seed(0)
cache = [{"row": n, "text": str(n)} for n in range(150_000)]
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = nn.functional.cross_entropy(model(torch.randn(64, 128)), torch.randint(0, 8, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gc.collect()
print(f"{loss.item():.3f}")
