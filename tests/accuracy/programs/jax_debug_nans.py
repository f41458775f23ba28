"""NaN checks were turned on for a bug that is fixed."""

import jax
import jax.numpy as jnp

jax.config.update("jax_debug_nans", True)


@jax.jit
def train_step(weights, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - x) ** 2))(weights)
    return weights - 0.1 * grads, loss


weights, x = jnp.eye(256), jax.random.normal(jax.random.key(0), (128, 256))
for _ in range(40):
    weights, loss = train_step(weights, x)
print(f"{float(loss):.5f}")
