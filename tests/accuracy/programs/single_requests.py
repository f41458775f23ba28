"""Embeds a list of documents, one call of the encoder for each."""

import torch
from torch import nn

torch.manual_seed(0)
documents = [torch.randn(1, 512) for _ in range(300)]
encoder = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 256)).eval()
vectors = []
with torch.inference_mode():
    for document in documents:
        vectors.append(encoder(document))
print(torch.cat(vectors).shape)
