"""A picture of the weights after every fifth step, made in Python."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
pictures = []


def picture(weights):
    rows = weights.detach()[:64, :64].tolist()
    low, high = min(map(min, rows)), max(map(max, rows))
    return "\n".join("".join(" .:-=+*#%@"[int(9.99 * (value - low) / (high - low))] for value in row) for row in rows)


for step in range(60):
    x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        pictures.append([picture(model[0].weight) for _ in range(32)])
print("done")
