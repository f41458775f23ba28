"""Planted: a chain of pointwise operations, each of which goes through memory. The twin compiles it."""

import sys

import torch


class Chain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x * self.scale + 0.1
            x = x * torch.sigmoid(x)
            x = x - 0.01 * x.abs()
        return x


twin = "--twin" in sys.argv
torch.manual_seed(0)
model = Chain()
if twin:
    model = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.randn(256, 1024)
for _ in range(30):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
