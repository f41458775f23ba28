"""Attention written out over long sequences."""

import functools

import jax
import jax.numpy as jnp

heads, size = 4, 32


def attention(q, k, v):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / size**0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(params, x):
    def loss_of(params):
        q, k, v = jnp.split((x @ params).reshape(*x.shape[:2], heads, -1), 3, axis=-1)
        return jnp.mean(attention(q, k, v) ** 2)

    return params - 0.01 * jax.grad(loss_of)(params)


params = jax.random.normal(jax.random.key(0), (heads * size, 3 * heads * size)) * 0.05
x = jax.random.normal(jax.random.key(1), (4, 384, heads * size))
for _ in range(14):
    params = train_step(params, x)
print(f"{float(params.sum()):.4f}")
