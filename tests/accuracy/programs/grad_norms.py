"""Logs the gradient norm of every parameter in each step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
history = []
for step in range(40):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    history.append({name: p.grad.norm().item() for name, p in model.named_parameters()})
    optimizer.step()
print(len(history))
