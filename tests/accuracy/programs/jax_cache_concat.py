"""A decoder whose cache is concatenated with each new token."""

import jax
import jax.numpy as jnp

heads, size = 4, 32


@jax.jit
def decode(params, keys, values, token):
    q, k, v = (token @ params[name] for name in ("q", "k", "v"))
    keys = jnp.concatenate([keys, k[None]])
    values = jnp.concatenate([values, v[None]])
    scores = jnp.einsum("hd,thd->ht", q.reshape(heads, size), keys.reshape(-1, heads, size))
    mixed = jnp.einsum("ht,thd->hd", jax.nn.softmax(scores), values.reshape(-1, heads, size))
    return jnp.tanh(mixed.reshape(-1) @ params["o"]), keys, values


width = heads * size
params = {n: jax.random.normal(k, (width, width)) * 0.1 for n, k in zip("qkvo", jax.random.split(jax.random.key(0), 4))}
keys = values = jnp.zeros((0, width))
token = jnp.ones(width)
for _ in range(48):
    token, keys, values = decode(params, keys, values, token)
print(f"{float(token.sum()):.4f}")
