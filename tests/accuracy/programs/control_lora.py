"""Adapters are trained over frozen weights."""

import torch
from torch import nn

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, width, rank=8, scale=2.0):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        self.scale = scale

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


model = nn.Sequential(*[m for _ in range(4) for m in (LoraLinear(768), nn.ReLU())])
model.requires_grad_(False)
adapters = [p for n, p in model.named_parameters() if "base" not in n]
for adapter in adapters:
    adapter.requires_grad_(True)
optimizer = torch.optim.AdamW(adapters, lr=1e-3, fused=True)
for _ in range(30):
    x = torch.randn(64, 768)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
