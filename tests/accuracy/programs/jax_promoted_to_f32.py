"""bfloat16 weights; the position table is float32 and so is all that follows."""

import jax
import jax.numpy as jnp

width, depth = 1024, 3


def init(key):
    weights = [jax.random.normal(k, (width, width)) * 0.02 for k in jax.random.split(key, depth)]
    return {
        "weights": [w.astype(jnp.bfloat16) for w in weights],
        "position": jnp.sin(jnp.arange(width, dtype=jnp.float32) / 50.0),
    }


def loss_of(params, x):
    h = x + params["position"]
    for w in params["weights"]:
        h = jax.nn.gelu(h @ w)
    return jnp.mean(h * h)


@jax.jit
def train_step(params, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: (p - 0.01 * g).astype(p.dtype), params, grads), loss


params, x = init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (512, width)).astype(jnp.bfloat16)
for _ in range(12):
    params, loss = train_step(params, x)
print(f"{float(loss):.5f}")
