"""A pipeline of four stages by shard_map; a batch is cut in as many microbatches as there are stages."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

stages, microbatches, batch, width = 4, 4, 64, 160
mesh = jax.make_mesh((stages,), ("pipe",), axis_types=(jax.sharding.AxisType.Auto,))


def run(weights, inputs):
    stage = jax.lax.axis_index("pipe")
    weight = weights[0]
    empty = jax.lax.pcast(jnp.zeros((batch, width)), "pipe", to="varying")
    results = jax.lax.pcast(jnp.zeros((microbatches, batch, width)), "pipe", to="varying")

    def tick(carry, time):
        held, results = carry
        fed = jnp.where(stage == 0, inputs[jnp.clip(time, 0, microbatches - 1)], held)
        made = jax.nn.relu(fed @ weight)
        done = jnp.clip(time - stages + 1, 0, microbatches - 1)
        last = (stage == stages - 1) & (time >= stages - 1)
        results = jnp.where(last, results.at[done].set(made), results)
        return (jax.lax.ppermute(made, "pipe", [(n, (n + 1) % stages) for n in range(stages)]), results), None

    (_, results), _ = jax.lax.scan(tick, (empty, results), jnp.arange(microbatches + stages - 1))
    return jax.lax.psum(jnp.where(stage == stages - 1, results, 0.0), "pipe")


forward = jax.shard_map(run, mesh=mesh, in_specs=(P("pipe"), P()), out_specs=P())


@jax.jit
def train_step(weights, inputs):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((forward(w, inputs) - 1.0) ** 2))(weights)
    return weights - 0.01 * grads, loss


weights = jax.device_put(
    jax.random.normal(jax.random.key(0), (stages, width, width)) * 0.05, NamedSharding(mesh, P("pipe"))
)
inputs = jax.device_put(jax.random.normal(jax.random.key(1), (microbatches, batch, width)), NamedSharding(mesh, P()))
for _ in range(20):
    weights, loss = train_step(weights, inputs)
print(f"{float(loss):.4f}")
