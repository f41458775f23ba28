"""Parameters are written with numpy in every fourth step."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

folder = Path(tempfile.mkdtemp())


@jax.jit
def train_step(params, x):
    grads = jax.grad(lambda p: jnp.mean((x @ p["a"] @ p["b"]) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


params = {"a": jnp.ones((512, 2048)) * 0.01, "b": jnp.ones((2048, 512)) * 0.01}
x = jax.random.normal(jax.random.key(0), (8, 512))
for step in range(40):
    params = train_step(params, x)
    if step % 4 == 3:
        np.savez(folder / "params.npz", **{name: np.asarray(value) for name, value in params.items()})
print("done")
