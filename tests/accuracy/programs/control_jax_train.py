"""A jitted, donated step; the loss is read every tenth step."""

import functools

import jax
import jax.numpy as jnp

width, depth = 384, 4


@functools.partial(jax.jit, donate_argnums=0)
def train_step(weights, x):
    def loss_of(weights):
        h, _ = jax.lax.scan(lambda h, w: (h + jax.nn.gelu(h @ w), None), x, weights)
        return jnp.mean((h - x) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(weights)
    return weights - 1e-2 * grads, loss


weights = jax.random.normal(jax.random.key(0), (depth, width, width)) * 0.02
x = jax.random.normal(jax.random.key(1), (256, width))
for step in range(40):
    weights, loss = train_step(weights, x)
    if step % 10 == 9:
        print(f"{float(loss):.4f}")
