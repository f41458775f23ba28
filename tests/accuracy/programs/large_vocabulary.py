"""A small language model with a large vocabulary whose loss is computed from all logits at once."""

import torch
from torch import nn

torch.manual_seed(0)
VOCABULARY = 24_000
embed = nn.Embedding(VOCABULARY, 48)
head = nn.Linear(48, VOCABULARY, bias=False)
optimizer = torch.optim.SGD([*embed.parameters(), *head.parameters()], lr=0.1)
for _ in range(16):
    tokens = torch.randint(0, VOCABULARY, (4, 65))
    logits = head(embed(tokens[:, :-1]))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
