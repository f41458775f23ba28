"""Small nets that are built in other ways than a stack of transformer blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Nested(nn.Module):
    """Sequentials in a Sequential, with dropout: the outer members are the blocks."""

    def __init__(self, checkpointed: bool, *, inplace: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=inplace), nn.Dropout(0.1)) for _ in range(5))
        )
        self.out = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(256, 64) to (256, 8)."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.out(x)


class Shared(nn.Module):
    """Each block is called twice, with work of no block between."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        blocks = (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(256, 64) to (256, 64)."""
        for _ in range(2):
            for block in self.blocks:
                x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return x


NETS: dict[str, Callable[[bool], nn.Module]] = {
    "nested": Nested,
    "in place": lambda checkpointed: Nested(checkpointed, inplace=True),
    "shared": Shared,
    "accumulated": Nested,
}
