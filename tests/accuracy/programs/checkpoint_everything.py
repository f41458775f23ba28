"""Activation checkpointing was switched on for a larger model and stayed on."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
blocks = nn.ModuleList(
    nn.Sequential(nn.Linear(384, 1536), nn.GELU(), nn.Linear(1536, 384), nn.LayerNorm(384)) for _ in range(4)
)
optimizer = torch.optim.AdamW(blocks.parameters(), fused=True)
for _ in range(20):
    x = torch.randn(256, 384, requires_grad=True)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
