"""A jitted function of one sample, called for each sample of a batch."""

import jax
import jax.numpy as jnp


@jax.jit
def score(weights, sample):
    return jnp.sum(jnp.tanh(sample @ weights))


weights = jax.random.normal(jax.random.key(0), (64, 64))
batches = jax.random.normal(jax.random.key(1), (20, 128, 64))
totals = []
for batch in batches:
    totals.append(jnp.stack([score(weights, sample) for sample in batch]).mean())
print(f"{float(sum(totals)):.4f}")
