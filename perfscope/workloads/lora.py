"""Fine-tuning with adapters of low rank over a frozen model.

    python -m perfscope.workloads.lora --variant factors
    python -m perfscope.workloads.lora --variant merged
    python -m perfscope.workloads.lora --variant dora-merged
    python -m perfscope.workloads.lora --variant quantised --size gpu
    python -m perfscope.workloads.lora --defect trained-base

Variants of an adapted layer: ``factors`` (two thin products with the input), ``merged`` (the weight with its adapter is
made in every call); ``dora`` (its rows scaled to a trained length, which needs their norms: from thin products),
``dora-merged`` (from the weight with its adapter); ``kept`` (a base of 4 bits, converted once), ``quantised``
(converted in every call, and in its backward again). The members of each pair train the same.

Shapes: B batch, L sequence, D and G features, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.attention import Block as AttentionBlock
from perfscope.workloads.data import batches
from perfscope.workloads.four_bits import FourBits
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.training import build, loss_of, report

VARIANTS = ("factors", "merged", "dora", "dora-merged", "kept", "quantised")
SIZES = {
    "tiny": Size(batch=4, seq=32, dim=128, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=64, dim=384, heads=4, layers=2),
    "gpu": Size(batch=8, seq=1024, dim=4096, heads=32, layers=8, vocab=32_000),
}
DEFECTS = {"trained-base": "let the weights below the adapters need gradients, although no optimizer has them"}
RANK, SCALE = 8, 2.0


class Adapted(nn.Module):
    """A linear layer with an adapter: x_BLD -> y_BLG."""

    def __init__(self, base: nn.Linear, variant: str) -> None:
        super().__init__()
        self.base = FourBits(base, kept=variant == "kept") if variant in ("kept", "quantised") else base
        self.variant = variant
        self.down_RD = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up_GR = nn.Parameter(torch.zeros(base.out_features, RANK))
        if variant.startswith("dora"):
            norm_G = base.weight.detach().norm(dim=1)
            self.length_G = nn.Parameter(norm_G)
            self.square_G: torch.Tensor
            self.register_buffer("square_G", norm_G**2)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """y_BLG."""
        if self.variant.startswith("dora"):
            return self.scaled(x_BLD)
        if self.variant == "merged":
            weight_GD = self.base.weight + SCALE * self.up_GR @ self.down_RD  # defect: constant_work: G * D per call
            return F.linear(x_BLD, weight_GD, self.base.bias)
        base_BLG = self.base(x_BLD)  # defect: frozen_gradients: a gradient of G * D that nothing uses
        return base_BLG + SCALE * F.linear(F.linear(x_BLD, self.down_RD), self.up_GR)

    def scaled(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """With rows of a trained length (DoRA, Liu et al. 2024): y_BLG. The norm counts as a constant, as there."""
        with torch.no_grad():
            norm_G = self.norm()
        y_BLG = F.linear(x_BLD, self.base.weight) + SCALE * F.linear(F.linear(x_BLD, self.down_RD), self.up_GR)
        return self.length_G / norm_G * y_BLG + self.base.bias

    def norm(self) -> torch.Tensor:
        """Norms of the rows of the weight with its adapter: norm_G."""
        if self.variant == "dora-merged":
            return (self.base.weight + SCALE * self.up_GR @ self.down_RD).norm(dim=1)  # defect: constant_work: G * D
        # The square of a sum: of the weight (made once), of the adapter (R * R products per row), twice their product
        mixed_GR = F.linear(self.base.weight, self.down_RD)
        square_GR = self.up_GR @ (self.down_RD @ self.down_RD.T)
        return (self.square_G + (self.up_GR * (2 * SCALE * mixed_GR + SCALE**2 * square_GR)).sum(1)).sqrt()


def adapted_block(size: Size, variant: str) -> nn.Module:
    """A transformer block whose perceptron has adapters."""
    block = AttentionBlock(size, "sdpa")
    block.up, block.down = Adapted(block.up, variant), Adapted(block.down, variant)
    return block


def train(options: Options) -> list[float]:
    """Trains the adapters for ``options.steps`` steps, prints the loss of each and returns them."""
    model = build(adapted_block, options)
    adapters = [weight for name, weight in model.named_parameters() if name.endswith(("down_RD", "up_GR", "length_G"))]
    if "trained-base" not in options.defects:
        model.requires_grad_(False)
        for weight in adapters:
            weight.requires_grad_(True)
    optimizer = torch.optim.AdamW(adapters, lr=3e-3, fused=True)
    losses = []
    for tokens_BM in batches(options):
        loss = loss_of(model, tokens_BM)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    train(parsed())
