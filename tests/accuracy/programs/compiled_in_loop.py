"""The model is compiled again in each epoch, after its hooks were changed."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(8):
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(4):
        loss = compiled(torch.randn(32, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{loss.item():.5f}")
