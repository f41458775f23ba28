"""Only the gradient is jitted; Adam is a tree of single operations."""

import jax
import jax.numpy as jnp

depth, width = 10, 64
params = [jax.random.normal(k, (width, width)) * 0.1 for k in jax.random.split(jax.random.key(0), depth)]
first = [jnp.zeros_like(p) for p in params]
second = [jnp.zeros_like(p) for p in params]


@jax.jit
def gradients(params, x):
    def loss_of(params):
        h = x
        for p in params:
            h = jnp.tanh(h @ p)
        return jnp.mean(h * h)

    return jax.grad(loss_of)(params)


def adam(params, first, second, grads, step):
    first = [0.9 * m + 0.1 * g for m, g in zip(first, grads)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(second, grads)]
    scale = 1e-3 * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
    params = [p - scale * m / (jnp.sqrt(v) + 1e-8) for p, m, v in zip(params, first, second)]
    return params, first, second


x = jax.random.normal(jax.random.key(1), (32, width))
for step in range(1, 40):
    params, first, second = adam(params, first, second, gradients(params, x), step)
print(f"{float(jnp.abs(params[0]).sum()):.4f}")
