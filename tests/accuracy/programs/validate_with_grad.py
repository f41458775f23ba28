"""A validation pass after every few steps; the model is in eval mode."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
held_out = [torch.randn(512, 256) for _ in range(4)]


def validate():
    model.eval()
    errors = []
    for x in held_out:
        errors.append(model(x).square().mean())
    model.train()
    return torch.stack(errors).mean()


for step in range(30):
    loss = nn.functional.cross_entropy(model(torch.randn(64, 256)), torch.randint(0, 10, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    error = validate()
print("done")
