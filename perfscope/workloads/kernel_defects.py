"""Kernels that take longer than they must, each with a twin that computes the same in less time and as many calls.

Shapes: B batch, L sequence, D model features, R features of an adapter, S scales of positions.

    python -m perfscope.workloads.attention --kernel-defect order
    python -m perfscope.workloads.attention --kernel-twin order
"""

from __future__ import annotations

import torch
from torch import nn

RANK = 4
"""R: few enough that the order of the products matters at every size."""

TABLES = 8
"""S: of positions, one for each scale."""

SCALE = 0.1
"""Scale of what both add: small compared with the activations, which are near 1."""


class Adapter(nn.Module):
    """Adds a product of low rank, as fine-tuning does: x_BLD -> x_BLD."""

    def __init__(self, dim: int, defective: bool) -> None:
        super().__init__()
        self.defective = defective
        self.down_DR = nn.Parameter(SCALE * torch.randn(dim, RANK))
        self.up_RD = nn.Parameter(SCALE * torch.randn(RANK, dim))

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        if self.defective:
            return x_BLD + x_BLD @ (self.down_DR @ self.up_RD)  # defect: none: a matrix of D * D, where R * D would do
        return x_BLD + (x_BLD @ self.down_DR) @ self.up_RD


class Positions(nn.Module):
    """Adds tables of positions: x_BLD -> x_BLD. The sums do not depend on the tables' layout in memory."""

    def __init__(self, length: int, dim: int, defective: bool) -> None:
        super().__init__()
        tables_SDL = SCALE * torch.randn(TABLES, dim, length)  # as another framework has stored them
        tables_SLD = tables_SDL.mT if defective else tables_SDL.mT.contiguous()
        self.tables_SLD = nn.Parameter(tables_SLD, requires_grad=False)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        for table_LD in self.tables_SLD:
            x_BLD = x_BLD + table_LD[: x_BLD.shape[1]]  # defect: none: jumps L numbers at every step
        return x_BLD


def detour_of(defect: str | None, twin: str | None, length: int, dim: int) -> nn.Module | None:
    """The module after every block: ``None`` without a defect and twin."""
    name, defective = defect or twin, defect is not None
    if name == "order":
        return Adapter(dim, defective)
    if name == "layout":
        return Positions(length, dim, defective)
    return None
