"""Two devices, the batch sharded, the parameters replicated."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.asarray(jax.devices()), ("data",))
replicated, sharded = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))


@functools.partial(jax.jit, donate_argnums=0)
def train_step(weights, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((jax.nn.gelu(x @ w) - x) ** 2))(weights)
    return weights - 0.1 * grads, loss


weights = jax.device_put(np.eye(512, dtype=np.float32), replicated)
x = jax.device_put(np.random.default_rng(0).random((1024, 512), np.float32), sharded)
for _ in range(30):
    weights, loss = train_step(weights, x)
print(f"{float(loss):.4f}")
