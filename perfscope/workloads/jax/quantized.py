"""Inference of linear layers with quantized weights, in JAX.

    python -m perfscope.workloads.jax.quantized --variant int4-unpacked
    python -m perfscope.workloads.jax.quantized --variant int4

``int8``, ``fp8``: rows are rounded to 8 bits too, and a Pallas kernel multiplies both as they are; ``int8-widened`` and
``fp8-widened`` convert both to float32 first. ``int4``: 4-bit weights are unpacked inside of a kernel;
``int4-unpacked`` has them in memory in the dtype of the activations. A kernel and its plain version compute the same.
``--batch`` is the number of rows, ``--dim`` that of inputs and outputs, ``--steps`` that of calls.

Shapes: M rows, D features.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax.data import device_of
from perfscope.workloads.jax.layers import Weights
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.options import Options, Size

VARIANTS = ("int8-widened", "int8", "fp8-widened", "fp8", "int4-unpacked", "int4")
LARGEST = {"int8": 127, "fp8": 448, "int4": 7}
"""Largest number of a format; ``fp8`` is float8_e4m3fn."""
SIZES = {
    "tiny": Size(batch=8, seq=1, dim=64, heads=1, layers=2, vocab=64),
    "cpu": Size(batch=16, seq=1, dim=512, heads=1, layers=4),
    "gpu": Size(batch=64, seq=1, dim=8192, heads=1, layers=8),
}


def initial(options: Options) -> list[Weights]:
    """Quantized weights and scales of each layer."""
    generator, dim = np.random.default_rng(options.seed), options.size.dim
    name = options.variant.partition("-")[0]
    most, half, layers = LARGEST[name], dim // 2, []
    for _ in range(options.size.layers):
        numbers_DD = generator.integers(-most, most + 1, (dim, dim), dtype=np.int16)
        weights = numbers_DD.astype(jnp.float8_e4m3fn if name == "fp8" else np.int8)
        if name == "int4":
            weights = (weights[:half] & 15) | (weights[half:] << 4)
        layers.append({"weights": weights, "scale_1D": np.full((1, dim), 2 / (most * dim**0.5), np.float32)})
    return layers


def rounded(x_MD: jax.Array, name: str) -> tuple[jax.Array, jax.Array]:
    """Rows in 8 bits, ``int8`` or ``fp8``, and their scales: q_MD, scale_M1."""
    scale_M1 = jnp.maximum(jnp.abs(x_MD).max(-1, keepdims=True).astype(jnp.float32), 1e-6) / LARGEST[name]
    unit_MD = x_MD.astype(jnp.float32) / scale_M1
    return jnp.round(unit_MD).astype(jnp.int8) if name == "int8" else unit_MD.astype(jnp.float8_e4m3fn), scale_M1


def linear(layer: Weights, x_MD: jax.Array, variant: str) -> jax.Array:
    """x_MD times the weights of a layer: y_MD."""
    weights, scale_1D = layer["weights"], layer["scale_1D"]
    if variant == "int4-unpacked":
        numbers_DD = jnp.concatenate(((weights << 4) >> 4, weights >> 4)).astype(x_MD.dtype)
        y_MD = jnp.matmul(x_MD, numbers_DD, preferred_element_type=jnp.float32)
        return (y_MD * scale_1D).astype(x_MD.dtype)
    # Loaded here: the other variants run where Pallas does not load.
    from perfscope.workloads.jax.kernels.quantized import int4_matmul, scaled_matmul

    if variant == "int4":
        return int4_matmul(x_MD, weights, scale_1D)
    name, _, plain = variant.partition("-")
    q_MD, scale_M1 = rounded(x_MD, name)
    if not plain:
        return scaled_matmul(q_MD, weights, scale_M1, scale_1D, x_MD.dtype)
    y_MD = q_MD.astype(jnp.float32) @ weights.astype(jnp.float32)
    return (y_MD * scale_M1 * scale_1D).astype(x_MD.dtype)


def infer(options: Options) -> np.ndarray:
    """Calls the layers ``options.steps`` times; prints and returns the mean of each row of the last result."""
    device = device_of(options)
    layers = jax.device_put(initial(options), device)

    @jax.jit
    def call(layers: list[Weights], x_MD: jax.Array) -> jax.Array:
        for number, layer in enumerate(layers):
            with jax.named_scope(f"layer_{number}"):
                x_MD = jax.nn.gelu(linear(layer, x_MD, options.variant))
        return x_MD

    start = np.random.default_rng(1).standard_normal((options.size.batch, options.size.dim), np.float32)
    x_MD = jax.device_put(start.astype(jnp.dtype(options.dtype)), device)
    for _ in range(options.steps):
        y_MD = call(layers, x_MD)
    means_M: np.ndarray = np.asarray(jax.device_get(y_MD), np.float32).mean(-1)
    print(*(f"{mean:.4f}" for mean in means_M))
    return means_M


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, {}).parse_args(argv), SIZES)


if __name__ == "__main__":
    infer(parsed())
