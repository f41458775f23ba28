"""A deep residual network; its equal layers are a Python loop inside jit."""

import jax
import jax.numpy as jnp

width, depth = 96, 28


def init(key):
    layers = []
    for k in jax.random.split(key, depth):
        a, b = jax.random.split(k)
        layers.append(
            {
                "up": jax.random.normal(a, (width, 4 * width)) * 0.02,
                "down": jax.random.normal(b, (4 * width, width)) * 0.02,
            }
        )
    return layers


def layer(p, x):
    mean = x.mean(-1, keepdims=True)
    h = (x - mean) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5)
    gate = jax.nn.softmax(h @ h.T / width**0.5) @ h
    return x + jax.nn.gelu(gate @ p["up"]) @ p["down"]


def loss_of(layers, x):
    for p in layers:
        x = layer(p, x)
    return jnp.mean(x**2)


@jax.jit
def train_step(layers, x):
    loss, grads = jax.value_and_grad(loss_of)(layers, x)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, layers, grads), loss


layers, x = init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (48, width))
for _ in range(12):
    layers, loss = train_step(layers, x)
print(f"{float(loss):.4f}")
