"""Decoding into a cache of fixed size, grouped heads left to the kernel."""

import torch
from torch import nn

torch.manual_seed(0)
batch, heads, kv_heads, size, longest = 4, 8, 2, 64, 256


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(heads * size, heads * size), nn.Linear(heads * size, 2 * kv_heads * size)
        self.register_buffer("keys", torch.zeros(batch, kv_heads, longest, size))
        self.register_buffer("values", torch.zeros(batch, kv_heads, longest, size))

    def forward(self, x, position):
        q = self.q(x).view(batch, 1, heads, size).transpose(1, 2)
        k, v = self.kv(x).view(batch, 1, 2, kv_heads, size).permute(2, 0, 3, 1, 4)
        self.keys[:, :, position : position + 1] = k
        self.values[:, :, position : position + 1] = v
        past = slice(0, position + 1)
        attended = nn.functional.scaled_dot_product_attention(
            q, self.keys[:, :, past], self.values[:, :, past], enable_gqa=True
        )
        return attended.transpose(1, 2).reshape(batch, 1, -1)


decoder = Decoder().eval()
x = torch.randn(batch, 1, heads * size)
with torch.inference_mode():
    for position in range(200):
        x = decoder(x, position)
print(x.shape)
