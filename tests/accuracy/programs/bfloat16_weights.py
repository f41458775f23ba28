"""Fine-tuning with weights in bfloat16 and a small learning rate."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-6, weight_decay=0.0)
for _ in range(24):
    x = torch.randn(64, 64, dtype=torch.bfloat16)
    loss = nn.functional.cross_entropy(model(x).float(), torch.randint(0, 8, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
