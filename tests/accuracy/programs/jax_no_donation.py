"""A large state that is replaced in each step and never donated."""

import jax
import jax.numpy as jnp


@jax.jit
def train_step(state, x):
    def loss_of(params):
        return jnp.mean((x @ params["a"] @ params["b"]) ** 2)

    grads = jax.grad(loss_of)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}


params = {"a": jnp.ones((1024, 2048)) * 0.01, "b": jnp.ones((2048, 1024)) * 0.01}
state = {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}
x = jax.random.normal(jax.random.key(0), (16, 1024))
for _ in range(16):
    state = train_step(state, x)
print(f"{float(state['params']['a'].sum()):.4f}")
