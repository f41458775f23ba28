"""Saves model and optimizer every third step."""

import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(36):
    x = torch.randn(16, 1024)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 2:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt")
print(f"{loss.item():.4f}")
