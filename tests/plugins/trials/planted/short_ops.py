"""Planted: many operations of a few numbers each, so that Python and the dispatcher take longer than they do.

The twin compiles them into one.
"""

import sys

import torch


class Chain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(100):
            x = x * self.scale + 0.01 * number
            x = x - 0.01 * x.abs()
        return x


twin = "--twin" in sys.argv
torch.manual_seed(0)
model = Chain()
if twin:
    model = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
batch = torch.randn(16, 16)
for _ in range(60):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
