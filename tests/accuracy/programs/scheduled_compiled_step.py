"""The optimizer's step is compiled; a cosine schedule sets the learning rate after each step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)


@torch.compile(backend="aot_eager", fullgraph=False)
def optimizer_step():
    optimizer.step()


for _ in range(30):
    x = torch.randn(32, 24)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer_step()
    schedule.step()
print(f"{loss.item():.5f}")
