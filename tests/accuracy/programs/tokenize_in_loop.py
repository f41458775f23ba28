"""Sentiment classifier; each batch of sentences is split and hashed in the loop."""

import random
import zlib

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
words = ["good", "bad", "film", "plot", "actor", "scene", "music", "long", "short", "bright"]
corpus = [" ".join(random.choices(words, k=220)) for _ in range(64)]
model = nn.Sequential(nn.EmbeddingBag(4096, 32), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def encode(text):
    ids = []
    for word in text.lower().split():
        ids.append(zlib.crc32(word.encode()) % 4096)
    return ids


for step in range(40):
    batch = torch.tensor([encode(text) for text in corpus])
    loss = nn.functional.cross_entropy(model(batch), torch.zeros(64, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f}")
