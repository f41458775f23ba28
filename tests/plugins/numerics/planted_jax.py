"""JAX programs with a planted numerical defect each, and twins without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

Layer = Callable[[Any, Any], Any]


def line_of(mark: str) -> str:
    """``tests/plugins/numerics/planted_jax.py:30`` of the line that ends with ``# mark``."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [index for index, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return f"tests/plugins/numerics/planted_jax.py:{number}"


def squared(x: Any, w: Any) -> Any:
    """Overflows float16 where ``x`` is large."""
    hidden = x @ w
    return hidden * hidden  # overflow


def divided(x: Any, w: Any) -> Any:
    """Divides by 0 where the weight begins with a number above 50."""
    hidden = jnp.tanh(x @ w)
    whole = hidden / (hidden[:, :1] - hidden[:, :1])  # division
    return jnp.where(w[0, 0] > 50, whole, hidden)


def masked(x: Any, w: Any) -> Any:
    """Attention whose mask is -inf where it hides."""
    scores = x @ w @ x.T
    hidden = jnp.triu(jnp.ones(scores.shape, bool), 1)
    return jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores)) @ x


def varied(x: Any, w: Any, *, planted: bool) -> Any:
    """A norm whose variance is the difference of two means (``planted``), or taken of the differences."""
    x = (x @ w + 30.0).astype(jnp.bfloat16)
    variance = jnp.var(x, axis=-1, keepdims=True)
    if planted:
        variance = (x * x).mean(-1, keepdims=True) - x.mean(-1, keepdims=True) ** 2  # cancellation
    return (x / jnp.sqrt(jnp.abs(variance) + 1e-3)).astype(jnp.float32)


def train(
    layer: Layer,
    weights: Any,
    batches: list[Any],
    step: list[int],
    *,
    rate: float = 1e-3,
    scanned: bool = False,
    donate: bool = False,
) -> Any:
    """A loop as a program has it; ``step[0]`` counts complete steps. ``scanned``: over stacked weights."""

    def loss_of(weights: Any, batch: Any) -> Any:
        if scanned:
            batch = jax.lax.scan(lambda x, w: (layer(x, w), None), batch, weights)[0]
        else:
            for weight in weights:
                batch = layer(batch, weight)
        return jnp.mean(batch.astype(jnp.float32) ** 2)

    @partial(jax.jit, **({"donate_argnums": 0} if donate else {}))
    def train_step(weights: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
        return jax.tree.map(lambda w, g: w - jnp.asarray(rate, w.dtype) * g, weights, gradients), loss

    for batch in batches:
        weights, _ = train_step(weights, batch)
        step[0] += 1
    return weights
