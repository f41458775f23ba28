"""A gated recurrence over time, written as a Python loop."""

import torch
from torch import nn

torch.manual_seed(0)


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        state = torch.zeros(x.shape[0], x.shape[2])
        gates, values = self.gate(x).sigmoid(), self.value(x)
        outputs = []
        for time in range(x.shape[1]):
            state = gates[:, time] * state + (1 - gates[:, time]) * values[:, time]
            outputs.append(state)
        return torch.stack(outputs, 1)


model = Recurrent(32)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(16):
    x = torch.randn(4, 200, 32)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
