"""The JAX twin of ``evaluation``: a training that evaluates its model every N steps.

    python -m perfscope.workloads.jax.pipelines.evaluation --steps 70 --defect single --defect item
    python -m perfscope.workloads.jax.pipelines.evaluation --steps 70

Shapes: B batch, M tokens of a sequence and its target.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from perfscope.workloads.jax.attention import SIZES, Block
from perfscope.workloads.jax.data import batches, device_of
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.jax.training import LanguageModel, loss_of, report, start, step_of
from perfscope.workloads.options import Options
from perfscope.workloads.pipelines.sizes import HELD_OUT

DEFECTS = {
    "single": "evaluate sequence by sequence",
    "item": "read the loss of each batch with float()",
}


def evaluate(loss: Callable[..., jax.Array], weights: Any, held_BM: np.ndarray, options: Options) -> float:
    """Mean loss over the held-out sequences, in nats."""
    rows = 1 if "single" in options.defects else options.size.batch
    total: Any = 0.0
    for first in range(0, len(held_BM), rows):
        tokens_BM = held_BM[first : first + rows]
        part = loss(weights, tokens_BM)
        total += (float(part) if "item" in options.defects else part) * len(tokens_BM)
    return float(total) / len(held_BM)


def train(options: Options, every: int) -> list[float]:
    """Trains ``options.steps`` steps; prints the losses and those of the evaluations, and returns both."""
    model, device = LanguageModel(Block, options), device_of(options)
    update, loss_only = jax.jit(step_of(model), donate_argnums=0), jax.jit(functools.partial(loss_of, model))
    state = jax.device_put(start(model), device)
    held_BM = np.concatenate(list(batches(replace(options, steps=HELD_OUT, seed=options.seed + 1))))
    losses, evaluated = [], []
    for step, tokens_BM in enumerate(batches(options)):
        state, loss = update(state, jax.device_put(tokens_BM, device))
        losses.append(loss)
        if step % every == every - 1:
            evaluated.append(evaluate(loss_only, state.weights, held_BM, options))  # defect: none: the host runs ahead
    for number, value in enumerate(evaluated):
        print(f"evaluation {number:3d}  loss {value:.4f}")
    return report(losses) + evaluated


def parsed(argv: Sequence[str] | None = None) -> tuple[Options, int]:
    """Options from the command line, and steps between two evaluations."""
    parser = parser_of(__doc__ or "", ("blocked",), SIZES, DEFECTS)
    parser.add_argument("--every", type=int, default=30, help="steps between two evaluations")
    options = parser.parse_args(argv)
    return options_of(options, SIZES), options.every


if __name__ == "__main__":
    train(*parsed())
