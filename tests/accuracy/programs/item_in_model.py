"""A compiled network that scales its input by a number which it reads from a tensor."""

import torch
from torch import nn

torch.manual_seed(0)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(96, 384), nn.Linear(384, 96)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        largest = h.abs().max().item()
        return self.second(h / (largest + 1e-6))


network = torch.compile(Network(), backend="aot_eager")
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
for _ in range(24):
    loss = network(torch.randn(64, 96)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
