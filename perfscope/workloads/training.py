"""The training loop of all workloads: a small language model around the block under study.

Shapes: B batch, L sequence, M = L + 1, D model features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, Size


class LanguageModel(nn.Module):
    """Embedding, ``size.layers`` blocks (x_BLD -> x_BLD) and a linear head: tokens_BL -> logits_BLV."""

    def __init__(self, block: Callable[[Size, str], nn.Module], options: Options) -> None:
        super().__init__()
        size = options.size
        self.defects = options.defects
        self.embedding = nn.Embedding(size.vocab, size.dim)
        self.blocks = nn.ModuleList(block(size, options.variant) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.dim)
        self.head = nn.Linear(size.dim, size.vocab, bias=False)

    def forward(self, tokens_BL: torch.Tensor) -> torch.Tensor:
        """logits_BLV."""
        x_BLD = self.embedding(tokens_BL)
        for block in self.blocks:
            if "checkpoint" in self.defects:
                x_BLD = checkpoint(block, x_BLD, use_reentrant=False)  # defect: pays a second forward
            elif "checkpoint-reentrant" in self.defects:
                x_BLD = checkpoint(block, x_BLD, use_reentrant=True)  # defect: pays a second forward
            else:
                x_BLD = block(x_BLD)
        return self.head(self.norm(x_BLD))


def build(block: Callable[[Size, str], nn.Module], options: Options) -> nn.Module:
    """The model on its device. The same seed gives every variant the same weights."""
    torch.manual_seed(options.seed)
    model = LanguageModel(block, options)
    return model.to(device=options.device, dtype=getattr(torch, options.dtype))


def loss_of(model: nn.Module, tokens_BM: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next token in nats, a scalar."""
    logits_BLV = model(tokens_BM[:, :-1])
    return F.cross_entropy(logits_BLV.flatten(0, 1).float(), tokens_BM[:, 1:].flatten())


def train(block: Callable[[Size, str], nn.Module], options: Options) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    torch.set_float32_matmul_precision("high")
    if "fp32" in options.defects:
        torch.set_float32_matmul_precision("highest")  # defect: forbids TF32
    model = build(block, options)
    if options.compile:
        model = torch.compile(model)
    if "adam-loop" in options.defects:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False, fused=False)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses, total = [], 0.0
    for tokens_BM in batches(options):
        loss = loss_of(model, tokens_BM)
        loss.backward()
        if "item" in options.defects:
            total += loss.item()  # defect: the host waits for the step it has just queued
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if "item" in options.defects:
        print(f"mean loss {total / options.steps:.4f}")
    return report(losses)


def report(losses: list[torch.Tensor]) -> list[float]:
    """Prints and returns the losses, read from the device once, after the last step."""
    values: list[float] = torch.stack(losses).tolist()
    for step, value in enumerate(values):
        print(f"step {step:3d}  loss {value:.4f}")
    return values
