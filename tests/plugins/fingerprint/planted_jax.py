"""A small training in JAX with one planted cause of divergence: `python planted_jax.py CAUSE`."""

import sys

import jax
import jax.numpy as jnp

CAUSE = sys.argv[1] if len(sys.argv) > 1 else ""
STEPS, WIDTH = 4, 32


def activation(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=CAUSE != "upgrade")  # library


def block(h: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
    h = activation(h @ weight)  # product
    if CAUSE == "scale":
        h = h * 1.0001  # scale
    return h, None


def loss(parameters: dict, key: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    h, _ = jax.lax.scan(block, x, parameters["blocks"])
    h = jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h, 0.0)  # dropout
    return jnp.mean((h @ parameters["out"] - y) ** 2)


@jax.jit
def step(parameters: dict, key: jax.Array, x: jax.Array, y: jax.Array) -> tuple[dict, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(parameters, key, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    parameters = {
        "blocks": jax.random.normal(keys[0], (3, WIDTH, WIDTH)) / 6,
        "out": jax.random.normal(keys[1], (WIDTH, 1)) / 6,
    }
    if CAUSE == "weights":
        parameters["out"] = parameters["out"].at[0, 0].add(1e-3)
    for number in range(STEPS):
        seed = 99 if CAUSE == "seed" and number == 1 else number
        order = {1: 2, 2: 1}.get(number, number) if CAUSE == "order" else number
        x = jax.random.normal(jax.random.key(1000 + order), (8, WIDTH))
        parameters, value = step(parameters, jax.random.key(seed), x, x[:, :1])  # step
        print(float(value).hex())


if __name__ == "__main__":
    main()
