"""Thread count copied from a large server."""

import torch
from torch import nn

torch.set_num_threads(48)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(24):
    x = torch.randn(128, 512)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
