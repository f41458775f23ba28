"""A small training with one planted cause of divergence: `python planted.py CAUSE`. Prints the bits of its losses."""

import sys

import torch
from torch import nn
from torch.nn import functional

CAUSE = sys.argv[1] if len(sys.argv) > 1 else ""
STEPS, WIDTH, CLASSES = 4, 64, 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH, eps=1e-3 if CAUSE == "epsilon" else 1e-5)
        self.down = nn.Linear(2 * WIDTH, CLASSES)
        self.scratch = torch.empty(8, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = activation(self.up(x))  # activation
        h = functional.dropout(h, 0.1 if DROPS else 0.0, self.training)  # dropout
        h = self.norm(h)  # norm
        if CAUSE == "scratch":
            self.scratch.detach_()[: len(h)] = h  # the rest is never written
            h = self.scratch[: len(h)]
        if CAUSE == "branch" and self.training and STEP == 1:
            h = h * 1.0  # branch
        return self.down(h)


LONG = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
"""Long enough that threads share its sum."""
DROPS = not CAUSE.startswith(("accumulate", "large"))
STEP = 0


def activation(x: torch.Tensor) -> torch.Tensor:
    """Stands for a function of a library, whose newer version takes another formula."""
    return functional.gelu(x, approximate="tanh") if CAUSE == "upgrade" else functional.gelu(x)  # library


def batches(seed: int, rows: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(STEPS):
        x = torch.randn(rows, WIDTH, generator=generator)
        pairs.append((x, torch.randint(CLASSES, (rows,), generator=generator)))
    return pairs


def step(model: nn.Module, optimizer: torch.optim.Optimizer, parts: list, scale: float) -> float:
    total = 0.0
    for x, y in parts:
        loss = functional.cross_entropy(model(x), y) * scale + 1e-6 * LONG.sum()  # loss
        loss.backward()  # backward
        total += loss.item()
    optimizer.step()  # optimizer
    optimizer.zero_grad()
    return total


def main() -> None:
    global STEP
    torch.manual_seed(0)
    torch.set_num_threads(2 if CAUSE == "threads" else 1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = batches(1)
    if CAUSE == "order":
        data = [data[0], data[2], data[1], data[3]]
    first = 0
    if CAUSE.startswith("resume"):
        saved = torch.load("checkpoint.pt", weights_only=False)
        model.load_state_dict(saved["model"])
        if CAUSE != "resume-optimizer":
            optimizer.load_state_dict(saved["optimizer"])
        if CAUSE != "resume-random":
            torch.set_rng_state(saved["random"])
        first = 0 if CAUSE == "resume-position" else saved["step"]
    parts = 4 if CAUSE.startswith("accumulate") else 1
    divides = CAUSE != "accumulate-sum"
    for STEP in range(first, STEPS):
        if CAUSE == "save" and STEP == 2:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**states, "random": torch.get_rng_state(), "step": STEP}, "checkpoint.pt")
        if CAUSE == "seed" and STEP == 1:
            torch.manual_seed(7)
        x, y = data[STEP]
        pieces = list(zip(x.chunk(parts), y.chunk(parts), strict=True))
        print(step(model, optimizer, pieces, 1 / parts if divides else 1.0).hex())


if __name__ == "__main__":
    main()
