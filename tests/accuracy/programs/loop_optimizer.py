"""Many small parameters, and an optimizer that was told to go one by one."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(30) for layer in (nn.Linear(48, 48), nn.Tanh())])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for _ in range(30):
    loss = model(torch.randn(16, 48)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
