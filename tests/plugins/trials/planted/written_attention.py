"""Planted: attention is written out as products and a softmax. The twin calls the fused one."""

import sys

import torch


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192)
        self.out = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 4, 16).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if twin:
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-1, -2) / 4.0
            mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


twin = "--twin" in sys.argv
torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.randn(2, 512, 64)
for _ in range(30):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
