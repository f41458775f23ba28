"""The JAX twin of ``perfscope.workloads.loop``: a training loop, and further work of its host.

    python -m perfscope.workloads.jax.loop --defect log
    python -m perfscope.workloads.jax.loop --twin shapes

Shapes: B batch, M tokens of a sequence and its target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from perfscope.workloads.host_defects import HOST_DEFECTS, HostWork
from perfscope.workloads.jax.attention import SIZES, Block
from perfscope.workloads.jax.data import batches, device_of
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.jax.training import LanguageModel, State, report, start, step_of
from perfscope.workloads.options import Options

VARIANTS = ("blocked", "naive")
SHAPE_DEFECTS = {"shapes": "feed sequences of ever new length, each of which is compiled"}
CALLBACK_DEFECTS = {"callback": "report the norms of all weights by a callback from inside the compiled step"}
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


def reporting(model: LanguageModel, reports: list[list[float]], callback: str | None) -> Callable[..., Any]:
    """The step, which reports the norms of the weights into ``reports``.

    ``callback``: ``defect`` by a callback, ``twin`` as a result for the caller; ``None``: no reports.
    """
    step = step_of(model)
    if callback is None:
        return step

    def report_norms(weights: list[np.ndarray]) -> None:
        reports.append([float(np.sqrt(np.sum(np.square(weight)))) for weight in weights])

    def with_callback(state: State, tokens_BM: jax.Array) -> tuple[State, Any]:
        state, loss = step(state, tokens_BM)
        jax.debug.callback(report_norms, jax.tree.leaves(state.weights))  # defect: host_callback: waits for Python
        return state, loss

    def with_norms(state: State, tokens_BM: jax.Array) -> tuple[State, Any]:
        state, loss = step(state, tokens_BM)
        norms = [jax.numpy.sqrt(jax.numpy.sum(weight * weight)) for weight in jax.tree.leaves(state.weights)]
        return state, (loss, norms)

    return with_callback if callback == "defect" else with_norms


def train(options: Options, host: HostWork, shapes: str | None, callback: str | None) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    model, device = LanguageModel(Block, options), device_of(options)
    reports: list[list[float]] = []
    update = jax.jit(reporting(model, reports, callback), donate_argnums=0)
    state = jax.device_put(start(model), device)

    def save(path: Path) -> None:
        np.savez(path, *jax.tree.leaves(jax.device_get(state)))  # defect: checkpoint_stall: the next step waits

    host.save = save
    losses, norms = [], []
    with host:
        for step, tokens_BM in enumerate(batches(options)):
            batch_BM = jax.device_put(batch_of(tokens_BM, step, shapes), device)
            state, loss = update(state, batch_BM)  # defect: recompilation: a new length
            host(step)
            if callback == "twin":
                loss, of_step = loss
                norms.append(of_step)
            losses.append(loss)
    reports += [[float(norm) for norm in of_step] for of_step in norms]
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> tuple[Options, HostWork, str | None, str | None]:
    """Options from the command line, the host's work, whether shapes change, and the way of reporting norms."""
    defects = {**HOST_DEFECTS, **SHAPE_DEFECTS, **CALLBACK_DEFECTS}
    parser = parser_of(__doc__ or "", VARIANTS, SIZES, defects)
    parser.add_argument("--twin", choices=defects, help="the same work out of the loop's way")
    options = parser.parse_args(argv)
    defect = next(iter(options.defect), None)
    shapes, callback = (
        "defect" if defect == name else "twin" if options.twin == name else None for name in ("shapes", "callback")
    )
    return options_of(options, SIZES), HostWork(defect, options.twin), shapes, callback


if __name__ == "__main__":
    train(*parsed())
