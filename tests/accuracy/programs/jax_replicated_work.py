"""A mesh of eight devices; the parameters are replicated and the batch is put on all of them."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.asarray(jax.devices()), ("batch",))
everywhere = NamedSharding(mesh, P())
weights = jax.device_put([np.full((192, 192), 0.01, np.float32)] * 3, everywhere)


@jax.jit
def train_step(weights, x, y):
    def loss_of(weights):
        h = x
        for w in weights:
            h = jax.nn.gelu(h @ w)
        return jnp.mean((h - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads)], loss


rng = np.random.default_rng(0)
for _ in range(30):
    x = jax.device_put(rng.standard_normal((384, 192), dtype=np.float32), everywhere)
    weights, loss = train_step(weights, x, x)
print(f"{float(loss):.4f}")
