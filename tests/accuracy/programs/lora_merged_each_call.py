"""An adapter whose full weight is built in every forward pass."""

import torch
from torch import nn

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, width, rank=8, scale=2.0):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, width) * 0.01)
        self.up = nn.Parameter(torch.zeros(width, rank))
        self.scale = scale

    def forward(self, x):
        weight = self.base.weight + self.scale * self.up @ self.down
        return nn.functional.linear(x, weight, self.base.bias)


model = nn.Sequential(*[LoraLinear(768) for _ in range(4)])
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, fused=True)
for _ in range(30):
    x = torch.randn(4, 768)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
