"""Batches come from a Python generator in the training loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def sample(seed):
    values, state = [], seed
    for _ in range(1500):
        state = (1103515245 * state + 12345) % 2**31
        values.append(state / 2**31)
    return values


def batches(steps):
    for step in range(steps):
        yield np.asarray([sample(step * 16 + n) for n in range(16)], np.float32)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(weights, x):
    return weights - 0.1 * jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w)) ** 2))(weights)


weights = jnp.ones((1500, 32)) * 0.01
for x in batches(150):
    weights = train_step(weights, x)
print(f"{float(weights.sum()):.4f}")
