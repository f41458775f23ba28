"""Products with quantized weights as Pallas kernels: 8 bits on both sides, and 4-bit weights that are unpacked on chip.

Shapes: M rows, K inputs, N outputs, I rows of a block, J outputs of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from perfscope.workloads.jax.kernels.launch import launch, padded

ROWS, PART = 32, 128
"""I, a TPU's tile of int8; and J, and the inputs that are taken at once, if they divide the whole."""


def _part(size: int) -> int:
    return PART if size % PART == 0 else size


def _some(part: jax.Array, size: int, first: int = 0) -> Any:
    return pl.ds(pl.multiple_of(first + part * size, size), size)


def _scaled_kernel(x_ref: Any, weights_ref: Any, rows_ref: Any, columns_ref: Any, y_ref: Any) -> None:
    """A block of rows and columns: the sum of products, of integers in int32, then both scales: writes y_IJ."""
    size = _part(x_ref.shape[1])
    wide = jnp.int32 if x_ref.dtype == jnp.int8 else jnp.float32

    def absorb(part: jax.Array, sum_IJ: jax.Array) -> jax.Array:
        some = _some(part, size)
        return sum_IJ + jnp.dot(x_ref[:, some], weights_ref[some, :], preferred_element_type=wide)

    sum_IJ = jax.lax.fori_loop(0, x_ref.shape[1] // size, absorb, jnp.zeros(y_ref.shape, wide))
    y_ref[...] = (sum_IJ.astype(jnp.float32) * rows_ref[...] * columns_ref[...]).astype(y_ref.dtype)


def _int4_kernel(x_ref: Any, weights_ref: Any, columns_ref: Any, y_ref: Any) -> None:
    """A block of rows and columns, with both halves of each byte of the weights: writes y_IJ."""
    half = weights_ref.shape[0]
    size = _part(half)

    def absorb(part: jax.Array, sum_IJ: jax.Array) -> jax.Array:
        bytes_KJ = weights_ref[_some(part, size), :].astype(jnp.int32)
        for first, numbers_KJ in ((0, (bytes_KJ << 28) >> 28), (half, bytes_KJ >> 4)):
            x_IK = x_ref[:, _some(part, size, first)]
            sum_IJ += jnp.dot(x_IK, numbers_KJ.astype(x_IK.dtype), preferred_element_type=jnp.float32)
        return sum_IJ

    sum_IJ = jax.lax.fori_loop(0, half // size, absorb, jnp.zeros(y_ref.shape, jnp.float32))
    y_ref[...] = (sum_IJ * columns_ref[...]).astype(y_ref.dtype)


def _product(
    kernel: Callable[..., None],
    name: str,
    x_MK: jax.Array,
    weights: jax.Array,
    scales: tuple[jax.Array, ...],
    dtype: Any,
) -> jax.Array:
    """y_MN. ``scales``: that of the rows, M1, if the kernel has one, and that of the columns, 1N."""
    rows, outputs = len(x_MK), weights.shape[1]
    x_MK, *scales_M1 = (padded(array, 0, ROWS) for array in (x_MK, *scales[:-1]))
    columns = _part(outputs)
    y_MN: jax.Array = launch(
        kernel,
        (x_MK, weights, *scales_M1, scales[-1]),
        name=name,
        grid=(len(x_MK) // ROWS, outputs // columns),
        in_specs=(
            pl.BlockSpec((ROWS, x_MK.shape[1]), lambda i, j: (i, 0)),
            pl.BlockSpec((len(weights), columns), lambda i, j: (0, j)),
            *(pl.BlockSpec((ROWS, 1), lambda i, j: (i, 0)) for _ in scales_M1),
            pl.BlockSpec((1, columns), lambda i, j: (0, j)),
        ),
        out_specs=pl.BlockSpec((ROWS, columns), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((len(x_MK), outputs), dtype),
        flops=2 * x_MK.size * outputs,
    )
    return y_MN[:rows]


def scaled_matmul(
    x_MK: jax.Array, weights_KN: jax.Array, rows_M1: jax.Array, columns_1N: jax.Array, dtype: Any
) -> jax.Array:
    """int8 by int8, or float8_e4m3fn by itself, times the scales of rows and columns: y_MN in ``dtype``."""
    name = "int8_matmul" if x_MK.dtype == jnp.int8 else "fp8_matmul"
    return _product(_scaled_kernel, name, x_MK, weights_KN, (rows_M1, columns_1N), dtype)


def int4_matmul(x_MK: jax.Array, packed: jax.Array, columns_1N: jax.Array) -> jax.Array:
    """Products with 4-bit weights: y_MN.

    ``packed``: int8, K / 2 by N; the low half of a byte is an input of the first half of K, the high half one of the
    second.
    """
    return _product(_int4_kernel, "int4_matmul", x_MK, packed, (columns_1N,), x_MK.dtype)
