"""A block under torch.utils.checkpoint and autocast, heads made contiguous, a softmax of bfloat16."""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.norm(x)
        h = functional.gelu(self.up(h))
        return x + self.down(h)


class Model(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.block = Block(width)
        self.head = torch.nn.Linear(width, width)

    def forward(self, x):
        x = checkpoint(self.block, x, use_reentrant=False)
        heads = x.view(4, 32, 8, 8)
        heads = heads.permute(0, 2, 1, 3).contiguous()
        scores = heads @ heads.transpose(2, 3)
        weights = torch.softmax(scores, -1)
        mixed = (weights @ heads).transpose(1, 2).reshape(4, 32, 64)
        return self.head(mixed)


model = Model()
compiled = torch.compile(model)
x = torch.randn(4, 32, 64)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = compiled(x).float().square().mean()
loss.backward()
print(loss.item())
