"""A transformer's training loop, and further work of its host: tokenising, logging, saving ...

    python -m perfscope.workloads.loop --defect log
    python -m perfscope.workloads.loop --twin log

Shapes: B batch, M tokens of a sequence and its target.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from perfscope.workloads.attention import SIZES, Block
from perfscope.workloads.data import batches
from perfscope.workloads.host_defects import HOST_DEFECTS, HostWork
from perfscope.workloads.options import Options, options_of, parser_of
from perfscope.workloads.training import build, loss_of, report

VARIANTS = ("sdpa", "naive")


def train(options: Options, host: HostWork) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    model = build(Block, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    def save(path: Path) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)  # defect: checkpoint_stall

    host.save = save
    losses = []
    with host:
        for step, tokens_BM in enumerate(batches(options)):
            loss = loss_of(model, tokens_BM)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            host(step)  # defect: slow_steps
            losses.append(loss.detach())
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> tuple[Options, HostWork]:
    """Options from the command line, and what the host does."""
    parser = parser_of(__doc__ or "", VARIANTS, SIZES, HOST_DEFECTS)
    parser.add_argument("--twin", choices=HOST_DEFECTS, help="the same work out of the loop's way")
    options = parser.parse_args(argv)
    return options_of(options, SIZES), HostWork(next(iter(options.defect), None), options.twin)


if __name__ == "__main__":
    train(*parsed())
