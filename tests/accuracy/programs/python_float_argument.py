"""A temperature that changes each step is passed as a Python number."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@torch.compile(backend="aot_eager", dynamic=False)
def loss_of(x, step: int):
    return (net(x) / (1 + step)).square().mean()


for step in range(30):
    loss = loss_of(torch.randn(32, 64), step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
