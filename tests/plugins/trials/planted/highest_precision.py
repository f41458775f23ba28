"""Planted: matrix products are requested in full float32. The twin leaves the platform its default."""

import sys

import jax
import jax.numpy as jnp

import perfscope

if "--twin" not in sys.argv:
    jax.config.update("jax_default_matmul_precision", "highest")


@jax.jit
def train_step(weights, batch):
    def loss_of(weights):
        return jnp.mean(jnp.tanh(batch @ weights) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 1e-3 * gradient, loss


key = jax.random.key(0)
weights = 0.02 * jax.random.normal(key, (512, 512))
batch = jax.random.normal(key, (512, 512))
for _ in range(30):
    weights, loss = train_step(weights, batch)
    loss.block_until_ready()
    perfscope.step()
