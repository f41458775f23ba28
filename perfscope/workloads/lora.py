"""Fine-tuning with adapters of low rank over a frozen model.

    python -m perfscope.workloads.lora --variant factors
    python -m perfscope.workloads.lora --variant merged
    python -m perfscope.workloads.lora --defect trained-base

Variants of an adapted layer: ``factors`` (two thin products with the input), ``merged`` (the weight with its adapter is
made in every call).

Shapes: B batch, L sequence, D and G features, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.attention import Block as AttentionBlock
from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.training import build, loss_of, report

VARIANTS = ("factors", "merged")
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
        self.base, self.merged = base, variant == "merged"
        self.down_RD = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up_GR = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """y_BLG."""
        if self.merged:
            weight_GD = self.base.weight + SCALE * self.up_GR @ self.down_RD  # defect: constant_work: G * D per call
            return F.linear(x_BLD, weight_GD, self.base.bias)
        base_BLG = self.base(x_BLD)  # defect: frozen_gradients: a gradient of G * D that nothing uses
        return base_BLG + SCALE * F.linear(F.linear(x_BLD, self.down_RD), self.up_GR)


def adapted_block(size: Size, variant: str) -> nn.Module:
    """A transformer block whose perceptron has adapters."""
    block = AttentionBlock(size, "sdpa")
    block.up, block.down = Adapted(block.up, variant), Adapted(block.down, variant)
    return block


def train(options: Options) -> list[float]:
    """Trains the adapters for ``options.steps`` steps, prints the loss of each and returns them."""
    model = build(adapted_block, options)
    adapters = [weight for name, weight in model.named_parameters() if name.endswith(("down_RD", "up_GR"))]
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
