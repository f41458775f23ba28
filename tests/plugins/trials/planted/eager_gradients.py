"""Planted: gradients are taken without jit, so every operation is dispatched alone. The twin compiles them."""

import sys

import jax
import jax.numpy as jnp

import perfscope


def loss_of(weights, batch):
    for weight in weights:
        batch = jnp.tanh(batch @ weight)
    return jnp.mean(batch**2)


gradients_of = jax.value_and_grad(loss_of)
if "--twin" in sys.argv:
    gradients_of = jax.jit(gradients_of)
key = jax.random.key(0)
weights = [0.1 * jax.random.normal(jax.random.fold_in(key, number), (32, 32)) for number in range(8)]
batch = jax.random.normal(key, (8, 32))
for _ in range(30):
    loss, gradients = gradients_of(weights, batch)
    weights = [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
    loss.block_until_ready()
    perfscope.step()
