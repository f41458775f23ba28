"""The JAX twin of ``checkpoint``: a training that saves its state with Orbax, NumPy or safetensors.

    python -m perfscope.workloads.jax.pipelines.checkpoint --defect orbax
    python -m perfscope.workloads.jax.pipelines.checkpoint --twin

Shapes: B batch, M tokens of a sequence and its target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from perfscope.workloads.jax.attention import Block
from perfscope.workloads.jax.data import batches, device_of
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.jax.training import LanguageModel, State, report, start, step_of
from perfscope.workloads.options import Options
from perfscope.workloads.pipelines.packages import needed
from perfscope.workloads.pipelines.sizes import SAVED

DEFECTS = {
    "orbax": "save with Orbax, and wait until it is stored",
    "wait": "save asynchronously, and wait for it right away",
    "async": "save asynchronously, again and again: the next save waits for the one before",
    "npz": "numpy.savez",
    "safetensors": "safetensors.numpy.save_file",
}


class Saver:
    """Saves the state into a folder, in one of the ways of ``DEFECTS``."""

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self.way = folder, way
        self.orbax: Any = needed("orbax.checkpoint") if way in ("orbax", "wait", "async") else None
        if self.orbax is not None:
            settings = self.orbax.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=way != "orbax")
            self.manager = self.orbax.CheckpointManager(folder / "orbax", options=settings)

    def __call__(self, step: int, state: State) -> None:
        """Save the state of a step."""
        if self.orbax is not None:
            self.manager.save(step, args=self.orbax.args.StandardSave(state._asdict()))  # defect: checkpoint_stall
            if self.way == "wait":
                self.manager.wait_until_finished()  # defect: checkpoint_stall: the steps could run meanwhile
            return
        arrays: dict[str, Any] = {str(number): np.asarray(part) for number, part in enumerate(jax.tree.leaves(state))}
        if self.way == "safetensors":
            needed("safetensors.numpy").save_file(arrays, self.folder / "state.safetensors")  # defect: checkpoint_stall
        else:
            np.savez(self.folder / "state.npz", **arrays)  # defect: checkpoint_stall

    def close(self) -> None:
        """Wait for the last save."""
        if self.orbax is not None:
            self.manager.close()


def train(options: Options, every: int, *, twin: bool) -> list[float]:
    """Trains ``options.steps`` steps, saves every ``every`` of them, prints the losses and returns them."""
    model, device = LanguageModel(Block, options), device_of(options)
    update = jax.jit(step_of(model), donate_argnums=0)
    state = jax.device_put(start(model), device)
    losses = []
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        saver = Saver(Path(folder), next(iter(options.defects), "npz"))
        for step, tokens_BM in enumerate(batches(options)):
            state, loss = update(state, jax.device_put(tokens_BM, device))
            losses.append(loss)
            if not twin and step % every == every - 1:
                saver(step, state)
        if twin:
            saver(options.steps, state)
        saver.close()
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> tuple[Options, int, bool]:
    """Options from the command line, steps between two saves, and whether it is the twin."""
    parser = parser_of(__doc__ or "", ("blocked",), SAVED, DEFECTS)
    parser.add_argument("--every", type=int, default=4, help="steps between two saves")
    parser.add_argument("--twin", action="store_true", help="save once, after the loop")
    options = parser.parse_args(argv)
    return options_of(options, SAVED), options.every, options.twin


if __name__ == "__main__":
    wanted, often, rarely = parsed()
    train(wanted, often, twin=rarely)
