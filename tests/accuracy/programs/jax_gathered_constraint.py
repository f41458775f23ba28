"""Two parts of a model agree on no layout: the middle tensor is resharded across both axes."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.asarray(jax.devices()).reshape(2, 4), ("replica", "model"))
rows = NamedSharding(mesh, P("model", None, "replica"))
columns = NamedSharding(mesh, P(None, ("replica", "model"), None))


def mix(a, b):
    hidden = jax.nn.relu(a * 2.0)
    hidden = jax.lax.with_sharding_constraint(hidden, columns)
    return jnp.sin(hidden + b)


step = jax.jit(mix, in_shardings=(rows, columns), out_shardings=columns)
rng = np.random.default_rng(0)
a = jax.device_put(rng.random((96, 96, 160), dtype=np.float32), rows)
b = jax.device_put(rng.random((96, 96, 160), dtype=np.float32), columns)
for _ in range(20):
    b = step(a, b)
print(f"{float(b.mean()):.4f}")
