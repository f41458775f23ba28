"""Decoding in one compiled loop with a cache of fixed size."""

import jax
import jax.numpy as jnp

width, longest = 256, 128


@jax.jit
def generate(params, token):
    def body(carry, position):
        keys, values, token = carry
        q, k, v = token @ params["q"], token @ params["k"], token @ params["v"]
        keys = jax.lax.dynamic_update_slice(keys, k[None], (position, 0))
        values = jax.lax.dynamic_update_slice(values, v[None], (position, 0))
        scores = jnp.where(jnp.arange(longest) <= position, keys @ q / width**0.5, -1e9)
        token = jnp.tanh(jax.nn.softmax(scores) @ values @ params["o"])
        return (keys, values, token), token[0]

    empty = jnp.zeros((longest, width))
    return jax.lax.scan(body, (empty, empty, token), jnp.arange(longest))[1]


params = {
    n: jax.random.normal(k, (width, width)) * 0.05 for n, k in zip("qkvo", jax.random.split(jax.random.key(0), 4))
}
for request in range(16):
    tokens = generate(params, jnp.full(width, 0.01 * request))
print(tokens.shape)
