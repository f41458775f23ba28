"""A compiled encoder fed with sentences as long as they are."""

import random

import torch
from torch import nn

random.seed(3)
torch.manual_seed(0)
embed = nn.Embedding(500, 64)
encoder = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))


@torch.compile(backend="aot_eager", dynamic=False)
def score(ids):
    return encoder(embed(ids)).mean(1).square().sum()


optimizer = torch.optim.SGD([*embed.parameters(), *encoder.parameters()], lr=0.01)
for _ in range(30):
    loss = score(torch.randint(0, 500, (8, random.randrange(10, 90))))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
