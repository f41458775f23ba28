"""Per-class losses by boolean masks; the loop stops early where a class is absent."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(128, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    x, label = torch.randn(256, 128), torch.randint(0, 16, (256,))
    logits = model(x)
    loss = 0
    for klass in range(16):
        chosen = logits[label == klass]
        loss = loss + chosen[:, klass].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
