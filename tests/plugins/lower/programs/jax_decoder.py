"""A decoder layer under jax.checkpoint in a scan: recomputed, transposed for heads, upcast for a norm."""

import jax
import jax.numpy as jnp


def norm(x, scale):
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return wide * scale


def layer(x, weights):
    h = norm(x, weights["scale"])
    h = jnp.tanh(h @ weights["up"])
    return x + (h @ weights["down"]).astype(x.dtype)


def loss(weights, x):
    def body(x, weights):
        return jax.checkpoint(layer)(x, weights), None

    x, _ = jax.lax.scan(body, x, weights)
    heads = x.reshape(4, 32, 8, 8)
    heads = jnp.transpose(heads, (0, 2, 1, 3))
    scores = jax.nn.softmax(heads @ jnp.swapaxes(heads, 2, 3))
    return jnp.mean(scores)


@jax.jit
def step(weights, x):
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return value, jax.tree.map(lambda w, g: w - (0.1 * g).astype(w.dtype), weights, gradients)


weights = {
    "scale": jnp.ones((3, 64), jnp.float32),
    "up": jnp.ones((3, 64, 256), jnp.bfloat16),
    "down": jnp.ones((3, 256, 64), jnp.bfloat16),
}
value, weights = step(weights, jnp.ones((128, 64), jnp.bfloat16))
print(value)
