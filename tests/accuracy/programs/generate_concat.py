"""Greedy decoding of a one-layer decoder; keys and values of the past are concatenated."""

import torch
from torch import nn

torch.manual_seed(0)
heads, size, vocabulary = 8, 64, 96
width = heads * size


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, past):
        q, k, v = self.qkv(x).view(x.shape[0], 1, 3, heads, size).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).reshape(x.shape)), (k, v)


embed, block, head = nn.Embedding(vocabulary, width), Block(), nn.Linear(width, vocabulary)
tokens, past = torch.zeros(8, 1, dtype=torch.long), None
with torch.no_grad():
    for position in range(320):
        hidden, past = block(embed(tokens), past)
        tokens = head(hidden).argmax(-1)
print(tokens.shape)
