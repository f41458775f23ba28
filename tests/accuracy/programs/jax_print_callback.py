"""A debug print left in the layers."""

import jax
import jax.numpy as jnp


@jax.jit
def train_step(weights, x):
    def loss_of(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
            jax.debug.callback(lambda m: None, h.mean())
        return jnp.mean(h**2)

    grads = jax.grad(loss_of)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads)]


weights = [jnp.eye(128)] * 6
x = jax.random.normal(jax.random.key(0), (128, 128))
for _ in range(40):
    weights = train_step(weights, x)
print(f"{float(weights[0].sum()):.4f}")
