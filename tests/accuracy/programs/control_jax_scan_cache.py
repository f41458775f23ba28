"""A scan over layers with the cache in its carry, written in place."""

import functools
import jax, jax.numpy as jnp

layers, batch, heads, size, longest = 4, 4, 8, 64, 512
width = heads * size


@functools.partial(jax.jit, donate_argnums=1)
def decode(params, cache, x, position):
    def layer(carry, inputs):
        x, K, V = carry
        w, i = inputs
        q, k, v = (x @ w[n] for n in "qkv")
        K = jax.lax.dynamic_update_slice(K, k[None, :, None], (i, 0, position, 0))
        V = jax.lax.dynamic_update_slice(V, v[None, :, None], (i, 0, position, 0))
        keys, values = K[i], V[i]
        scores = (
            jnp.einsum("bhd,bthd->bht", q.reshape(batch, heads, size), keys.reshape(batch, longest, heads, size)) / 8
        )
        scores = jnp.where(jnp.arange(longest) <= position, scores, -1e9)
        mixed = jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), values.reshape(batch, longest, heads, size))
        return (x + jnp.tanh(mixed.reshape(batch, width) @ w["o"]), K, V), None

    (x, *cache), _ = jax.lax.scan(layer, (x, *cache), (params, jnp.arange(layers)))
    return x, tuple(cache)


params = {
    n: jax.random.normal(k, (layers, width, width)) * 0.05
    for n, k in zip("qkvo", jax.random.split(jax.random.key(0), 4))
}
cache = tuple(jnp.zeros((layers, batch, longest, width)) for _ in range(2))
x = jnp.ones((batch, width))
for position in range(60):
    x, cache = decode(params, cache, x, position)
print(float(x.sum()))
