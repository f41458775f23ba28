"""A scatter-heavy graph model with deterministic algorithms required."""

import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
nodes, edges, width = 2000, 16000, 64
source, target = torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,))
linear = nn.Linear(width, width)
optimizer = torch.optim.AdamW(linear.parameters(), fused=True)
features = torch.randn(nodes, width)
for _ in range(20):
    messages = linear(features)[source]
    summed = torch.zeros(nodes, width).index_add(0, target, messages)
    loss = summed.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
