"""The JAX twin of ``perfscope.workloads.loop``: a training loop, and what its host does besides.

    python -m perfscope.workloads.jax.loop --defect log
    python -m perfscope.workloads.jax.loop --twin shapes

Shapes: B batch, M tokens of a sequence and its target.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from perfscope.workloads.host_defects import HOST_DEFECTS, HostWork
from perfscope.workloads.jax.attention import SIZES, Block
from perfscope.workloads.jax.data import batches, device_of
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.jax.training import LanguageModel, report, start, step_of
from perfscope.workloads.options import Options

VARIANTS = ("blocked", "naive")
SHAPE_DEFECTS = {"shapes": "feed sequences of ever new length, each of which is compiled"}
FEWEST = 8
"""Least length of a sequence."""


def batch_of(tokens_BM: np.ndarray, step: int, shapes: str | None) -> np.ndarray:
    """The tokens of a step, of ever new length; ``shapes``: ``defect`` so, ``twin`` padded to the full length."""
    if shapes is None:
        return tokens_BM
    short_BM = tokens_BM[:, : max(FEWEST, tokens_BM.shape[1] - step)]
    if shapes == "twin":
        return np.pad(short_BM, ((0, 0), (0, tokens_BM.shape[1] - short_BM.shape[1])))
    return short_BM


def train(options: Options, host: HostWork, shapes: str | None) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    model, device = LanguageModel(Block, options), device_of(options)
    update = jax.jit(step_of(model), donate_argnums=0)
    state = jax.device_put(start(model), device)

    def save(path: Path) -> None:
        np.savez(path, *jax.tree.leaves(jax.device_get(state)))  # defect: host_bound: the next step waits for the disk

    host.save = save
    losses = []
    with host:
        for step, tokens_BM in enumerate(batches(options)):
            batch_BM = jax.device_put(batch_of(tokens_BM, step, shapes), device)
            state, loss = update(state, batch_BM)  # defect: recompilation: a new length
            host(step)
            losses.append(loss)
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> tuple[Options, HostWork, str | None]:
    """Options from the command line, what the host does, and whether shapes change."""
    parser = parser_of(__doc__ or "", VARIANTS, SIZES, {**HOST_DEFECTS, **SHAPE_DEFECTS})
    parser.add_argument("--twin", choices={**HOST_DEFECTS, **SHAPE_DEFECTS}, help="the same work out of the loop's way")
    asked = parser.parse_args(argv)
    defect = next(iter(asked.defect), None)
    shapes = "defect" if defect == "shapes" else "twin" if asked.twin == "shapes" else None
    return options_of(asked, SIZES), HostWork(defect, asked.twin), shapes


if __name__ == "__main__":
    train(*parsed())
