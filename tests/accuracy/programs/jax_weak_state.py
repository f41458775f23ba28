"""A training step with a running average in its state; the average starts as a Python number."""

import jax
import jax.numpy as jnp
import numpy as np

width, depth = 192, 8


def init(key):
    keys = jax.random.split(key, depth)
    return [jax.random.normal(k, (width, width)) / width**0.5 for k in keys]


def loss_of(params, x):
    for weight in params:
        x = x + jax.nn.silu(x @ weight)
    return jnp.mean(x * x)


@jax.jit
def update(state, x):
    loss, grads = jax.value_and_grad(loss_of)(state["params"], x)
    average = 0.95 * state["average"] + 0.05 * loss
    params = jax.tree.map(lambda p, g: p - 1e-3 * g, state["params"], grads)
    return {"params": params, "average": average, "best": jnp.minimum(state["best"], average)}, loss


state = {"params": init(jax.random.key(0)), "average": jnp.asarray(0.0), "best": jnp.asarray(1e9)}
rng = np.random.default_rng(0)
for step in range(30):
    state, loss = update(state, rng.standard_normal((64, width), dtype=np.float32))
print(f"{float(state['average']):.4f}")
