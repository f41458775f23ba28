"""A Jacobian, computed row by row to be part of the loss."""

import torch
from torch import nn

torch.manual_seed(0)
flow = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))
optimizer = torch.optim.Adam(flow.parameters(), fused=True)


def jacobian(x):
    y = flow(x)
    rows = [torch.autograd.grad(y[:, i].sum(), x, create_graph=True)[0] for i in range(y.shape[1])]
    return torch.stack(rows, 1)


for _ in range(16):
    x = torch.randn(64, 32, requires_grad=True)
    loss = (jacobian(x) - torch.eye(32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
