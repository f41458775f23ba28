"""Helpers of the tests: one step of a JAX workload, compiled once."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from perfscope.workloads.options import Options

Numbers = dict[str, np.ndarray]
"""``loss``, ``logits`` and the gradient of every parameter by its path, float32."""


def workload(name: str) -> Any:
    return importlib.import_module(f"perfscope.workloads.jax.{name}")


def options(name: str, variant: str, dtype: str = "float32", **more: Any) -> Options:
    return Options(variant=variant, size=workload(name).SIZES["tiny"], dtype=dtype, **more)


def tokens(name: str) -> np.ndarray:
    """tokens_BM of the tiny size, random: the affine walk of the workloads repeats itself."""
    size = workload(name).SIZES["tiny"]
    return np.random.default_rng(1).integers(size.vocab, size=(size.batch, size.seq + 1), dtype=np.int32)


@functools.cache
def jax_numbers(name: str, variant: str, dtype: str) -> Numbers:
    """One step of the JAX workload with the weights of seed 0."""
    import jax

    from perfscope.workloads.jax.training import LanguageModel, loss_of, start

    model = LanguageModel(workload(name).Block, options(name, variant, dtype))

    def objective(weights: Any, tokens_BM: Any) -> tuple[Any, Any]:
        seen: list[Any] = []

        def watched(*arguments: Any) -> Any:
            seen.append(model(*arguments))
            return seen[-1]

        loss = loss_of(watched, weights, tokens_BM)  # type: ignore[arg-type]
        return loss, seen[0]

    step = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (loss, logits), gradients = jax.device_get(step(start(model).weights, tokens(name)))
    gradients, logits = jax.tree.map(lambda array: array.astype(np.float32), (gradients, logits))
    by_path = {jax.tree_util.keystr(path): array for path, array in jax.tree_util.tree_leaves_with_path(gradients)}
    return {"loss": loss, "logits": logits, **by_path}


def variants(name: str) -> tuple[str, ...]:
    names: tuple[str, ...] = workload(name).VARIANTS
    return names


def distances(ours: Numbers, theirs: Numbers) -> dict[str, float]:
    """Relative distance, in the 2-norm, of everything in two steps."""
    assert set(ours) == set(theirs)
    return {
        name: float(np.linalg.norm(ours[name] - value.astype(np.float64)) / np.linalg.norm(value.astype(np.float64)))
        for name, value in theirs.items()
    }


TOLERANCE = {
    # The same arithmetic in another order. A sum of n terms of unit roundoff 2**-24 is off by about sqrt(n) of them;
    # the longest sums have 4096 terms: 64 * 6e-8 = 4e-6, and a model is a few of them in a row.
    "float32": {"loss": 1e-6, "logits": 1e-5, "gradient": 1e-5},
    # Activations and gradients are rounded to 8 bits after every op, but after different ones: XLA fuses, and keeps
    # float32 between ops that PyTorch rounds. Each rounding is off by up to 2**-9 = 2e-3; the gradients of the first
    # layer have about 30 of them, independent of each other: sqrt(30) * 2e-3 = 1e-2, more where terms cancel (the
    # gradients of norms and biases, sums over all tokens). The loss is a float32 mean over all tokens.
    "bfloat16": {"loss": 1e-3, "logits": 2e-2, "gradient": 5e-2},
}


def assert_same(ours: Numbers, theirs: Numbers, dtype: str) -> None:
    allowed = TOLERANCE[dtype]
    found = distances(ours, theirs)
    wrong = {name: far for name, far in found.items() if not far <= allowed.get(name, allowed["gradient"])}
    assert wrong == {}
