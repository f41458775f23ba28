"""PyTorch programs with a planted numerical defect each, and twins without it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


def line_of(mark: str) -> str:
    """``tests/plugins/numerics/planted.py:30`` of the line that ends with ``# mark``."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [index for index, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return f"tests/plugins/numerics/planted.py:{number}"


class Block(nn.Module):
    """Overflows float16 where ``factor`` is large."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.up, self.down, self.factor = nn.Linear(32, 64), nn.Linear(64, 32), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        hidden = hidden * hidden * self.factor  # overflow
        return x + self.down(hidden)  # down


class Blocks(nn.Module):
    """Two blocks, of which the second one gets the factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 4)
        self.blocks = nn.ModuleList([Block(1.0), Block(factor)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Masked(nn.Module):
    """Attention whose mask, with -inf at hidden positions, is the output of a separate module."""

    class Mask(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size = x.shape[-2]
            hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
            return torch.zeros(size, size).masked_fill(hidden, float("-inf"))

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.project = self.Mask(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask, x = self.mask(x), self.project(x)
        return (x @ x.mT + mask).softmax(-1) @ x


class MaskedEntropy(nn.Module):
    """Entropy of a softmax with a position that a mask forbids: 0 times infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.arange(8) == 3
        logs = self.scores(x).masked_fill(hidden, float("-inf")).log_softmax(-1)
        return -(logs.exp() * logs).sum(-1)  # entropy


class LongSoftmax(nn.Module):
    """A softmax over ``length`` positions."""

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.scores, self.dtype = nn.Linear(4, length), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(x).to(self.dtype).softmax(-1)  # softmax


class Rooted(nn.Module):
    """Every second call has a root of 0, whose gradient is infinite: the loss is finite, and no scale fits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.linear(x)
        return y if self.calls % 2 else y + (y * 0).abs().sqrt()


class Variance(nn.Module):
    """A norm whose variance is the difference of two means (``planted``), or taken by ``var``."""

    def __init__(self, *, planted: bool) -> None:
        super().__init__()
        self.scale, self.planted = nn.Linear(64, 64), planted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (self.scale(x) + 30.0).bfloat16()
        variance = x.var(-1, correction=0)
        if self.planted:
            variance = (x * x).mean(-1) - x.mean(-1) ** 2  # cancellation
        return x * (variance.abs() + 1e-3).rsqrt().unsqueeze(-1)


def train(
    model: nn.Module,
    batches: list[torch.Tensor],
    step: list[int],
    *,
    rate: float = 1e-3,
    scaler: torch.amp.GradScaler | None = None,
    factors: list[float] | None = None,
) -> None:
    """A loop as a program has it; ``step[0]`` counts complete steps. ``factors``: of the loss in each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for number, batch in enumerate(batches):
        loss = model(batch).float().square().mean() * (1.0 if factors is None else factors[number])
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        step[0] += 1
