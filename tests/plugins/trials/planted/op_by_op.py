"""Planted: jit was turned off to debug, so every operation is dispatched alone. The twin has it on."""

import sys

import jax
import jax.numpy as jnp

import perfscope

twin = "--twin" in sys.argv
jax.config.update("jax_disable_jit", not twin)


def loss_of(weights, batch):
    for weight in weights:
        batch = jnp.tanh(batch @ weight)
    return jnp.mean(batch**2)


@jax.jit
def train_step(weights, batch):
    loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
    return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss


key = jax.random.key(0)
weights = [0.1 * jax.random.normal(jax.random.fold_in(key, number), (32, 32)) for number in range(4)]
batch = jax.random.normal(key, (8, 32))
for _ in range(30):
    weights, loss = train_step(weights, batch)
    loss.block_until_ready()
    perfscope.step()
