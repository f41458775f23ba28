"""A scan over the samples of a batch; each is independent of the others."""

import jax
import jax.numpy as jnp


@jax.jit
def train_step(weights, batch):
    def sample_loss(w, x):
        return jnp.mean((jnp.tanh(x @ w) - x) ** 2)

    def body(total, x):
        return total + sample_loss(weights, x), None

    def loss_of(weights):
        total, _ = jax.lax.scan(lambda total, x: (total + sample_loss(weights, x), None), 0.0, batch)
        return total / len(batch)

    return weights - 0.1 * jax.grad(loss_of)(weights)


weights = jnp.eye(96)
batch = jax.random.normal(jax.random.key(0), (1024, 96))
for _ in range(24):
    weights = train_step(weights, batch)
print(f"{float(weights.sum()):.4f}")
