"""House prices in dollars as targets, a summed loss, and float16 with a loss scale."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
scaler = torch.amp.GradScaler("cpu")
for _ in range(48):
    houses = torch.randn(128, 16)
    prices = 300_000 + 40_000 * houses[:, 0]
    with torch.autocast("cpu", dtype=torch.float16):
        predicted = model(houses).squeeze(-1)
    loss = (predicted.float() - prices).square().sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(f"scale {scaler.get_scale():g}")
