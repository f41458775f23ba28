"""Decoding with grouped-query attention; the few KV heads are repeated before attention."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
batch, q_heads, kv_heads, length, size = 4, 16, 2, 1024, 64
keys = torch.randn(batch, kv_heads, length, size)
values = torch.randn(batch, kv_heads, length, size)
project = torch.nn.Linear(q_heads * size, q_heads * size)


class Attention(torch.nn.Module):
    def forward(self, x):
        q = project(x).view(batch, 1, q_heads, size).transpose(1, 2)
        k = keys.repeat_interleave(q_heads // kv_heads, dim=1)
        v = values.repeat_interleave(q_heads // kv_heads, dim=1)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, 1, -1)


attention = Attention().eval()
x = torch.randn(batch, 1, q_heads * size)
with torch.inference_mode():
    for _ in range(60):
        x = attention(x)
print(x.shape)
