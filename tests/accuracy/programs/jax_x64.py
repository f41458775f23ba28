"""A solver's flag that every module of the program inherits."""

import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp


@jax.jit
def train_step(params, x):
    def loss_of(params):
        h = x
        for w in params:
            h = jax.nn.relu(h @ w)
        return jnp.mean((h - x) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return [p - 0.01 * g for p, g in zip(params, grads)], loss


params = [jax.random.normal(k, (512, 512)) * 0.05 for k in jax.random.split(jax.random.key(0), 4)]
x = jax.random.normal(jax.random.key(1), (128, 512))
for _ in range(20):
    params, loss = train_step(params, x)
print(f"{float(loss):.5f}")
