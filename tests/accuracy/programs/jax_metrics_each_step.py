"""Logs five numbers of each step."""

import jax
import jax.numpy as jnp


@jax.jit
def train_step(params, x):
    def loss_of(params):
        h = jnp.tanh(x @ params["in"])
        return jnp.mean((h @ params["out"] - x) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    norms = {name: jnp.linalg.norm(g) for name, g in grads.items()}
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), {"loss": loss, **norms}


params = {"in": jnp.ones((128, 512)) * 0.01, "out": jnp.ones((512, 128)) * 0.01}
x = jax.random.normal(jax.random.key(0), (256, 128))
history = []
for step in range(40):
    params, metrics = train_step(params, x)
    history.append({name: float(value) for name, value in metrics.items()})
print(len(history))
