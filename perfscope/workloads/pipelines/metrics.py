"""A training that clips its gradients and writes metrics, as people write it, and a twin that does less of both.

    python -m perfscope.workloads.pipelines.metrics --defect tracker
    python -m perfscope.workloads.pipelines.metrics --defect clip

Shapes: B batch, M tokens of a sequence and its target.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from perfscope.workloads.attention import SIZES, Block
from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, options_of, parser_of
from perfscope.workloads.pipelines.packages import needed
from perfscope.workloads.training import build, loss_of, report

DEFECTS = {
    "tracker": "send a record with all weights' histograms to a tracker in each step",
    "tensorboard": "write the histograms of all weights for TensorBoard in each step",
    "clip": "read the norm of the gradients with .item(), and raise if it is not finite",
}
EVERY = 20
BINS = 512


class Tracker:
    """A tracker of experiments: a file of records, each of which is on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w")

    def log(self, record: dict[str, Any]) -> None:
        """Write a record."""
        self.file.write(json.dumps({"time": time.time(), **record}) + "\n")  # defect: host_bound
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """End the file."""
        self.file.close()


def train(options: Options) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    model = build(Block, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    with tempfile.TemporaryDirectory(prefix="metrics-") as folder:
        tracker = Tracker(Path(folder) / "log.jsonl")
        board = None
        if "tensorboard" in options.defects:
            board = needed("torch.utils.tensorboard").SummaryWriter(folder)
        for step, tokens_BM in enumerate(batches(options)):
            loss = loss_of(model, tokens_BM)
            loss.backward()
            if "clip" in options.defects:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
                norm.item()  # defect: host_sync: and another wait inside of the clipping
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            if "tracker" in options.defects:
                weights = {name: torch.histc(part.detach(), BINS).tolist() for name, part in model.named_parameters()}
                tracker.log({"step": step, "weights": weights})
            elif board is not None:
                for name, part in model.named_parameters():
                    board.add_histogram(name, part.detach(), step, bins=BINS)  # defect: host_bound
            elif step % EVERY == 0:
                tracker.log({"step": step, "loss": loss.item()})
        tracker.close()
        if board is not None:
            board.close()
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", ("sdpa",), SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    train(parsed())
