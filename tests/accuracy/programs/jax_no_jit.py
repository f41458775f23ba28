"""Gradient descent on a small physics model; nothing is jitted."""

import jax
import jax.numpy as jnp


def energy(positions, charges):
    total = 0.0
    for i in range(len(charges)):
        for j in range(i):
            distance = jnp.sqrt(jnp.sum((positions[i] - positions[j]) ** 2) + 1e-3)
            total = total + charges[i] * charges[j] / distance
    return total + 0.1 * jnp.sum(positions**2)


def relax(positions, charges):
    return positions - 0.01 * jax.grad(energy)(positions, charges)


positions = jax.random.normal(jax.random.key(0), (9, 3))
charges = jnp.ones(9)
for _ in range(24):
    positions = relax(positions, charges)
print(f"{float(energy(positions, charges)):.4f}")
