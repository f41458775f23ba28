"""The cache is written through a mask: every token writes the whole cache."""

import torch
from torch import nn

torch.manual_seed(0)
batch, heads, size, longest = 8, 8, 64, 512
width = heads * size


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, keys, values, position):
        q, k, v = self.qkv(x).view(batch, 1, 3, heads, size).permute(2, 0, 3, 1, 4)
        here = (torch.arange(longest) == position)[None, None, :, None]
        keys = torch.where(here, k, keys)
        values = torch.where(here, v, values)
        mask = torch.arange(longest) <= position
        mixed = nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None, None, None])
        return self.out(mixed.transpose(1, 2).reshape(batch, 1, width)), keys, values


model = Decoder().eval()
keys = values = torch.zeros(batch, heads, longest, size)
x = torch.randn(batch, 1, width)
with torch.inference_mode():
    for position in range(150):
        x, keys, values = model(x, keys, values, position)
print(x.shape)
