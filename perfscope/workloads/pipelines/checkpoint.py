"""A training that saves its state, in ways that keep it waiting, and a twin that saves once after the loop.

    python -m perfscope.workloads.pipelines.checkpoint --defect sync
    python -m perfscope.workloads.pipelines.checkpoint --twin

Shapes: B batch, M tokens of a sequence and its target.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from perfscope.workloads.attention import Block
from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, options_of, parser_of
from perfscope.workloads.pipelines.sizes import SAVED
from perfscope.workloads.training import build, loss_of, report

DEFECTS = {
    "sync": "torch.save of weights and optimizer",
    "dcp": "torch.distributed.checkpoint.save",
    "async": "async_save, again and again: the steps meanwhile share the machine with it",
    "thread": "torch.save in a thread, of a copy; a save waits for the one before",
}


class Saver:
    """Saves into a folder, in one of the ways of ``DEFECTS``."""

    def __init__(self, folder: Path, state: Callable[[], dict[str, Any]]) -> None:
        self.folder, self.state = folder, state
        self.pending: Any = None

    def sync(self, step: int) -> None:
        """Serialise and write, on the thread of the steps."""
        torch.save(self.state(), self.folder / f"{step % 2}.pt")  # defect: checkpoint_stall

    def dcp(self, step: int) -> None:
        """The same in the format of jobs of several ranks."""
        dcp.save(self.state(), checkpoint_id=self.folder / f"dcp-{step % 2}", no_dist=True)  # defect: checkpoint_stall

    def asynchronous(self, step: int) -> None:
        """Copy, and write on another thread."""
        self.finish()
        self.pending = dcp.async_save(self.state(), checkpoint_id=self.folder / f"{step % 2}", no_dist=True)

    def thread(self, step: int) -> None:
        """Copy, and serialise on another thread."""
        self.finish()
        copy = torch.utils._pytree.tree_map(lambda part: part.clone() if torch.is_tensor(part) else part, self.state())
        self.pending = threading.Thread(target=torch.save, args=(copy, self.folder / f"{step % 2}.pt"))
        self.pending.start()

    def finish(self) -> None:
        """Wait for the last save."""
        if isinstance(self.pending, threading.Thread):
            self.pending.join()
        elif self.pending is not None:
            self.pending.result()


def train(options: Options, every: int, *, twin: bool) -> list[float]:
    """Trains ``options.steps`` steps, saves every ``every`` of them, prints the losses and returns them."""
    model = build(Block, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        saver = Saver(Path(folder), lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        ways = {"sync": saver.sync, "dcp": saver.dcp, "async": saver.asynchronous, "thread": saver.thread}
        save = ways[next(iter(options.defects), "sync")]
        for step, tokens_BM in enumerate(batches(options)):
            loss = loss_of(model, tokens_BM)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            if not twin and step % every == every - 1:
                save(step)
        saver.finish()
        if twin:
            saver.sync(options.steps)
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> tuple[Options, int, bool]:
    """Options from the command line, steps between two saves, and whether it is the twin."""
    parser = parser_of(__doc__ or "", ("sdpa",), SAVED, DEFECTS)
    parser.add_argument("--every", type=int, default=4, help="steps between two saves")
    parser.add_argument("--twin", action="store_true", help="save once, after the loop")
    options = parser.parse_args(argv)
    return options_of(options, SAVED), options.every, options.twin


if __name__ == "__main__":
    wanted, often, rarely = parsed()
    train(wanted, often, twin=rarely)
