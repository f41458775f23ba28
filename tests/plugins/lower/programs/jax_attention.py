"""Attention over heads that are not first, with a float32 scale: XLA transposes, JAX promotes, kernels share work."""

import jax
import jax.numpy as jnp


def attend(q, k, v, temperature):
    scores = jax.lax.dot_general(q, k, (((3,), (3,)), ((0, 2), (0, 2))))
    scores = scores * temperature
    weights = jax.nn.softmax(scores)
    return weights @ jnp.moveaxis(v, 1, 2).astype(weights.dtype)


@jax.jit
def moments(x):
    centred = x * x - 3.0
    return jnp.sum(centred, 0), jnp.max(centred, 1), centred[::2]


q = jnp.ones((2, 64, 4, 32), jnp.bfloat16)
print(jax.jit(attend)(q, q, q, jnp.float32(0.5)).sum())
print(moments(jnp.ones((256, 256)))[1].sum())
