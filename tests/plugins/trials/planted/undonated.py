"""Planted: a step returns new weights and momenta and keeps the old ones. The twin donates the old."""

import sys

import jax
import jax.numpy as jnp

import perfscope


def train_step(state, batch):
    def loss_of(weights):
        return jnp.mean(jnp.tanh(batch @ weights) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state["weights"])
    momentum = 0.9 * state["momentum"] + gradient
    return {"weights": state["weights"] - 1e-3 * momentum, "momentum": momentum}, loss


train_step = jax.jit(train_step, donate_argnums=0) if "--twin" in sys.argv else jax.jit(train_step)
key = jax.random.key(0)
state = {"weights": 0.02 * jax.random.normal(key, (2048, 2048)), "momentum": jnp.zeros((2048, 2048))}
batch = jax.random.normal(key, (8, 2048))
for _ in range(30):
    state, loss = train_step(state, batch)
    loss.block_until_ready()
    perfscope.step()
