"""Eight devices that compute one program together: one of them late, or all of them waiting for input.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m perfscope.workloads.jax.devices --defect straggler

The step sleeps a little, as on real devices: eight devices that share two cores disturb each other less then.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from perfscope.workloads.options import help_of

DEFECTS = {
    "straggler": "the fourth device does two hundred times the work of the others",
    "input": "making a batch takes long",
}
WIDTH = 256
ROUNDS, LATE_ROUNDS, LATE = 1, 200, 3
INPUT_S, REST_S = 0.2, 0.05


@jax.named_scope("work")
def work(x_DD: jax.Array, rounds: int) -> jax.Array:
    """``rounds`` products."""
    return jax.lax.fori_loop(0, rounds, lambda _, y_DD: jnp.tanh(y_DD @ y_DD * 1e-2), x_DD)


def step_of(mesh: Mesh, defect: str | None) -> jax.stages.Wrapped:
    """A step on all devices: work, then a sum over them."""
    late_rounds = LATE_ROUNDS if defect == "straggler" else ROUNDS

    def train_step(x_1DD: jax.Array) -> jax.Array:
        x_DD = x_1DD.reshape(WIDTH, WIDTH)
        late = jax.lax.axis_index("d") == LATE
        x_DD = jax.lax.cond(late, lambda y: work(y, late_rounds), lambda y: work(y, ROUNDS), x_DD)  # defect: straggler
        with jax.named_scope("sum"):
            return (x_DD + jax.lax.psum(x_DD, "d") * 1e-3).reshape(1, WIDTH, WIDTH)

    return jax.jit(jax.shard_map(train_step, mesh=mesh, in_specs=P("d"), out_specs=P("d")))


def batches(devices: int, steps: int, defect: str | None) -> Iterator[np.ndarray]:
    """One batch a step."""
    batch = np.full((devices, WIDTH, WIDTH), 0.01, np.float32)
    for _ in range(steps):
        if defect == "input":
            time.sleep(INPUT_S)  # defect: input_stall
        yield batch


def train(defect: str | None, steps: int) -> None:
    """Runs ``steps`` steps."""
    import perfscope

    devices = jax.devices()
    train_step = step_of(Mesh(np.array(devices), ("d",)), defect)
    x_EDD = jnp.full((len(devices), WIDTH, WIDTH), 0.01)
    source = batches(len(devices), steps, defect)
    while True:
        with perfscope.region("input"):
            batch = next(source, None)
        if batch is None:
            break
        x_EDD = train_step(x_EDD + batch)
        x_EDD.block_until_ready()
        time.sleep(REST_S)
        perfscope.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--defect", choices=DEFECTS, help=help_of(DEFECTS))
    parser.add_argument("--steps", type=int, default=14)
    arguments = parser.parse_args()
    train(arguments.defect, arguments.steps)
