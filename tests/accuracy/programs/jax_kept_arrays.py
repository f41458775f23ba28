"""Every step's predictions are kept on the device for a plot at the end."""

import jax
import jax.numpy as jnp


@jax.jit
def train_step(weights, x):
    out = jnp.tanh(x @ weights)
    grads = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - x) ** 2))(weights)
    return weights - 0.1 * grads, out


weights = jnp.eye(512)
predictions = []
for step in range(60):
    x = jax.random.normal(jax.random.key(step), (512, 512))
    weights, out = train_step(weights, x)
    predictions.append(out)
print(len(predictions))
