"""A training that evaluates its model every N steps, as people write it, and a twin whose evaluation is cheap.

    python -m perfscope.workloads.pipelines.evaluation --steps 70 --defect single --defect graph --defect item
    python -m perfscope.workloads.pipelines.evaluation --steps 70

Shapes: B batch, M tokens of a sequence and its target.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from perfscope.workloads.data import batches
from perfscope.workloads.moe import SIZES, Block
from perfscope.workloads.options import Options, options_of, parser_of
from perfscope.workloads.pipelines.sizes import HELD_OUT
from perfscope.workloads.training import build, loss_of, report

DEFECTS = {
    "single": "evaluate sequence by sequence",
    "graph": "evaluate with gradients enabled",
    "item": "read the loss of each batch with .item()",
}


def evaluate(model: nn.Module, held_BM: torch.Tensor, options: Options) -> float:
    """Mean loss over the held-out sequences, in nats."""
    rows = 1 if "single" in options.defects else options.size.batch
    total: float | torch.Tensor = 0.0
    model.eval()
    with contextlib.nullcontext() if "graph" in options.defects else torch.no_grad():
        for tokens_BM in held_BM.split(rows):
            loss = loss_of(model, tokens_BM) * len(tokens_BM)  # defect: needless_grad
            total += loss.item() if "item" in options.defects else loss.detach()
    model.train()
    return float(total) / len(held_BM)


def train(options: Options, every: int) -> list[float]:
    """Trains ``options.steps`` steps; prints the losses and those of the evaluations, and returns both."""
    model = build(Block, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    held_BM = torch.cat(list(batches(replace(options, steps=HELD_OUT, seed=options.seed + 1))))
    losses, evaluated = [], []
    for step, tokens_BM in enumerate(batches(options)):
        loss = loss_of(model, tokens_BM)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if step % every == every - 1:
            evaluated.append(evaluate(model, held_BM, options))  # defect: eval_stall
    for number, value in enumerate(evaluated):
        print(f"evaluation {number:3d}  loss {value:.4f}")
    return report(losses) + evaluated


def parsed(argv: Sequence[str] | None = None) -> tuple[Options, int]:
    """Options from the command line, and steps between two evaluations."""
    parser = parser_of(__doc__ or "", ("index_add",), SIZES, DEFECTS)
    parser.add_argument("--every", type=int, default=30, help="steps between two evaluations")
    options = parser.parse_args(argv)
    return options_of(options, SIZES), options.every


if __name__ == "__main__":
    train(*parsed())
