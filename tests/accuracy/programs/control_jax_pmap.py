"""Data parallelism by pmap; the loss is read every tenth step."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.pmap, axis_name="data", donate_argnums=0)
def train_step(weights, x):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((jax.nn.relu(x @ w) - x) ** 2))(weights)
    return weights - 0.1 * jax.lax.pmean(grads, "data"), jax.lax.pmean(loss, "data")


weights = jnp.stack([jnp.eye(384)] * 2)
x = (
    jax.device_put_sharded(
        [np.random.default_rng(n).random((512, 384), np.float32) for n in range(2)], jax.devices()[:2]
    )
    if hasattr(jax, "device_put_sharded")
    else np.random.default_rng(0).random((2, 512, 384), np.float32)
)
for step in range(40):
    weights, loss = train_step(weights, x)
    if step % 10 == 9:
        print(f"{float(loss[0]):.4f}")
