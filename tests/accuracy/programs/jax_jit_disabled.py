"""Somebody stepped through the code with a debugger."""

import jax
import jax.numpy as jnp

jax.config.update("jax_disable_jit", True)


@jax.jit
def train_step(params, x):
    def loss_of(params):
        h = x
        for w, b in params:
            h = jax.nn.gelu(h @ w + b)
        return jnp.mean((h - x) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss


params = [(jnp.eye(64) * 0.5, jnp.zeros(64)) for _ in range(5)]
x = jax.random.normal(jax.random.key(0), (64, 64))
for _ in range(20):
    params, loss = train_step(params, x)
print(f"{float(loss):.5f}")
