"""Q-learning on a toy task; the replay buffer is one tensor that grows by concatenation."""

import torch
from torch import nn

torch.manual_seed(0)
q_network = nn.Sequential(nn.Linear(384, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(q_network.parameters(), lr=0.01)
buffer = torch.empty(0, 384)
for episode in range(160):
    states = torch.randn(160, 384)
    buffer = torch.cat((buffer, states))
    batch = buffer[torch.randint(0, len(buffer), (64,))]
    loss = (q_network(batch).max(1).values - batch.mean(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(buffer), f"{loss.item():.4f}")
