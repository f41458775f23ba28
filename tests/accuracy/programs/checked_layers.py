"""A compiled network that looks for values that are not finite after each of its layers."""

import torch
from torch import nn

torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = x + self.down(torch.relu(self.up(x)))
        if not torch.isfinite(h).all():
            raise ValueError("a value is not finite")
        return h


network = torch.compile(nn.Sequential(*(Layer(64) for _ in range(6))), backend="aot_eager")
with torch.inference_mode():
    for _ in range(24):
        scores = network(torch.randn(16, 64))
print(f"{scores.mean().item():.4f}")
