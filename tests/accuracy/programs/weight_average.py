"""An average of the weights, updated tensor by tensor after each step."""

import torch
from torch import nn

torch.manual_seed(0)
blocks = [layer for _ in range(40) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
model = nn.Sequential(*blocks, nn.Linear(32, 10))
average = {name: value.clone() for name, value in model.state_dict().items()}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


@torch.no_grad()
def update_average(decay=0.999):
    for name, value in model.state_dict().items():
        average[name].mul_(decay).add_(value, alpha=1 - decay)


for _ in range(16):
    x, y = torch.randn(16, 32), torch.randint(0, 10, (16,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_average()
