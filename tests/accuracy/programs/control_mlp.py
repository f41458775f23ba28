"""A plain, well-written training loop."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
total = torch.zeros(())
for step in range(30):
    x, y = torch.randn(256, 512), torch.randint(0, 10, (256,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    total += loss.detach()
print(f"{total.item() / 30:.3f}")
