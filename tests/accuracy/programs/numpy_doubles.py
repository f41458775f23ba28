"""Features from numpy; the model was made double to get rid of a dtype error."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(1)
features = rng.normal(size=(1024, 384))
labels = torch.from_numpy(features.sum(1, keepdims=True))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(384, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(30):
    rows = torch.randint(0, 1024, (48,))
    x = torch.from_numpy(features)[rows]
    loss = (model(x) - labels[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f}")
