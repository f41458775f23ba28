"""A linear layer whose weight is kept in 4 bits per number (NF4, Dettmers et al. 2023), as QLoRA has its base.

Shapes: D and G features, N numbers of a weight, S numbers of a block, which share a scale. ``...`` is any number of
leading axes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

BLOCK = 64
"""Numbers that share a scale."""
LEVELS = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407,
          0.5626, 0.7230, 1.0)  # fmt: skip
"""Quantiles of a normal distribution, scaled to 1, rounded to 4 digits."""


def packed(weight_GD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of two numbers per byte, and the scale of each block."""
    blocks_NS = weight_GD.reshape(-1, BLOCK)
    scale_N1 = blocks_NS.abs().amax(1, keepdim=True)
    levels = torch.tensor(LEVELS)
    codes = (blocks_NS[..., None] / scale_N1[..., None] - levels).abs().argmin(-1).to(torch.uint8).view(-1, 2)
    return codes[:, 0] << 4 | codes[:, 1], scale_N1


class Product(torch.autograd.Function):
    """``x @ weight.T`` with a weight in 4 bits, of which the backward keeps no other copy."""

    @staticmethod
    def forward(context: Any, x_D: torch.Tensor, layer: FourBits) -> torch.Tensor:
        """y_...G."""
        context.layer = layer
        return F.linear(x_D, layer.weight(x_D.dtype))

    @staticmethod
    def backward(context: Any, slope_G: torch.Tensor) -> Any:
        """The gradient of x_...D; the weight has none."""
        return slope_G @ context.layer.weight(slope_G.dtype), None


class FourBits(nn.Module):
    """A linear layer with a weight in 4 bits: x_...D -> y_...G. ``kept``: converted once, where memory allows."""

    def __init__(self, base: nn.Linear, *, kept: bool) -> None:
        super().__init__()
        self.shape, self.bias, self.kept = base.weight.shape, base.bias, kept
        codes, scale_N1 = packed(base.weight.detach())
        self.codes: torch.Tensor
        self.scale_N1: torch.Tensor
        self.levels: torch.Tensor
        self.register_buffer("codes", codes)
        self.register_buffer("scale_N1", scale_N1)
        self.register_buffer("levels", torch.tensor(LEVELS))
        self.converted_GD: torch.Tensor | None = None

    def weight(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight as numbers: weight_GD."""
        codes = torch.stack((self.codes >> 4, self.codes & 15), dim=1).int()
        blocks_NS = self.levels[codes].view(-1, BLOCK) * self.scale_N1  # defect: constant_work: 8 times the bytes
        return blocks_NS.view(self.shape).to(dtype)

    def forward(self, x_D: torch.Tensor) -> torch.Tensor:
        """y_...G."""
        if not self.kept:
            return Product.apply(x_D, self) + self.bias
        if self.converted_GD is None:
            self.converted_GD = self.weight(x_D.dtype)
        return F.linear(x_D, self.converted_GD) + self.bias
