"""A training loop in JAX that tests of capture go on from."""

from __future__ import annotations

from pathlib import Path

LOOP = """
import jax
import jax.numpy as jnp

def loss_of(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return (x ** 2).mean()

@jax.jit
def train_step(weights, x):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x)
    return [w - 0.1 * g for w, g in zip(weights, gradients)], loss

def work(turns, rows=lambda turn: 8, after=lambda turn, loss: None):
    key = jax.random.key(0)
    weights = [jax.random.normal(jax.random.fold_in(key, at), (16, 16)) for at in range(3)]
    for turn in range(turns):
        x = jax.random.normal(jax.random.fold_in(key, 100 + turn), (rows(turn), 16))
        weights, loss = train_step(weights, x)
        after(turn, loss)
    return weights, loss
"""
"""A training loop without perfscope; a test's program continues from here."""

PRINT = "print(float(loss).hex(), [float(w.sum()).hex() for w in weights])\n"


def run_folder(folder: Path) -> Path:
    return folder / "perfscope-runs" / "latest"
