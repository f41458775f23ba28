"""Products of sorted rows with the weights of their experts as Pallas kernels (MegaBlocks, Gale et al. 2022).

Shapes: R rows, E experts, S blocks of rows (all of one block belong to one expert), I rows of a block, D features of a
row, G features of a result, J of them in a block.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from perfscope.workloads.jax.kernels.launch import launch

ROWS, PART = 64, 128
"""Largest I; and J, if it divides the columns."""


def layout(rows_E: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, int]:
    """Place of each expert's first row, the expert of each block, and the rows of a block.

    ``rows_E``: rows of each expert; ``rows``: of all. There are as many blocks as the worst division of rows needs.
    """
    experts = len(rows_E)
    block = min(ROWS, max(16, int(pl.next_power_of_2(rows // experts))))
    ends_E = jnp.cumsum(-(-rows_E // block))
    number_S = jnp.arange(-(-rows // block) + experts)
    expert_S = jnp.minimum(jnp.searchsorted(ends_E, number_S, side="right"), experts - 1).astype(jnp.int32)
    return (ends_E - (-(-rows_E // block))) * block, expert_S, block


def _kernel(expert_ref: Any, x_ref: Any, weights_ref: Any, y_ref: Any) -> None:
    """A block of rows times a block of columns of its expert's weights: writes y_IJ."""
    expert, features = expert_ref[pl.program_id(1)], x_ref.shape[1]
    size = _part(features)

    def absorb(part: jax.Array, sum_IJ: jax.Array) -> jax.Array:
        some = pl.ds(pl.multiple_of(part * size, size), size)
        return sum_IJ + jnp.dot(x_ref[:, some], weights_ref[expert, some, :], preferred_element_type=jnp.float32)

    zeros_IJ = jnp.zeros(y_ref.shape, jnp.float32)
    y_ref[...] = jax.lax.fori_loop(0, features // size, absorb, zeros_IJ).astype(y_ref.dtype)


def _weights_kernel(first_ref: Any, last_ref: Any, x_ref: Any, dy_ref: Any, dweights_ref: Any) -> None:
    """The gradient of a part of one expert's weights, from its blocks of rows: writes a block of dweights_DG."""
    expert = pl.program_id(0)

    def absorb(block: jax.Array, sum_DJ: jax.Array) -> jax.Array:
        return sum_DJ + jnp.dot(x_ref[block].T, dy_ref[block], preferred_element_type=jnp.float32)

    zeros_DJ = jnp.zeros(dweights_ref.shape, jnp.float32)
    sum_DJ = jax.lax.fori_loop(first_ref[expert], last_ref[expert], absorb, zeros_DJ)
    dweights_ref[...] = sum_DJ.astype(dweights_ref.dtype)


def _part(size: int) -> int:
    """Features or columns that a kernel takes at once."""
    return PART if size % PART == 0 else size


def _product(x_RD: jax.Array, weights_EDG: jax.Array, expert_S: jax.Array) -> jax.Array:
    """y_RG."""
    experts, features, results = weights_EDG.shape
    block, columns = len(x_RD) // len(expert_S), _part(results)
    y_RG: jax.Array = launch(
        _kernel,
        (expert_S, x_RD, weights_EDG),
        name="grouped_matmul",
        grid=(results // columns, len(expert_S)),
        in_specs=(
            pl.BlockSpec(expert_S.shape, lambda j, s: (0,)),
            pl.BlockSpec((block, features), lambda j, s: (s, 0)),
            pl.BlockSpec((experts, features, columns), lambda j, s: (0, 0, j)),
        ),
        out_specs=pl.BlockSpec((block, columns), lambda j, s: (s, j)),
        out_shape=jax.ShapeDtypeStruct((len(x_RD), results), x_RD.dtype),
        flops=2 * len(x_RD) * features * results,
        scalars=1,
    )
    return y_RG


@jax.custom_vjp
def grouped_matmul(x_RD: jax.Array, weights_EDG: jax.Array, expert_S: jax.Array) -> jax.Array:
    """Rows times the weights of their block's expert, in the layout of ``layout``: y_RG."""
    return _product(x_RD, weights_EDG, expert_S)


def _forward(x_RD: jax.Array, weights_EDG: jax.Array, expert_S: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _product(x_RD, weights_EDG, expert_S), (x_RD, weights_EDG, expert_S)


def _backward(saved: tuple[jax.Array, ...], dy_RG: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x_RD, weights_EDG, expert_S = saved
    dx_RD = _product(dy_RG, weights_EDG.swapaxes(1, 2), expert_S)
    experts, features, results = weights_EDG.shape
    blocks, rows, columns = len(expert_S), _part(features), _part(results)
    number_E = jnp.arange(experts)
    ends = [jnp.searchsorted(expert_S, number_E, side=side).astype(jnp.int32) for side in ("left", "right")]
    bounds = pl.BlockSpec((experts,), lambda e, i, j: (0,))
    dweights_EDG = launch(
        _weights_kernel,
        (*ends, x_RD.reshape(blocks, -1, features), dy_RG.reshape(blocks, -1, results)),
        name="grouped_matmul_weights",
        grid=(experts, features // rows, results // columns),
        in_specs=(
            bounds,
            bounds,
            pl.BlockSpec((blocks, len(x_RD) // blocks, rows), lambda e, i, j: (0, 0, i)),
            pl.BlockSpec((blocks, len(x_RD) // blocks, columns), lambda e, i, j: (0, 0, j)),
        ),
        out_specs=pl.BlockSpec((None, rows, columns), lambda e, i, j: (e, i, j)),
        out_shape=jax.ShapeDtypeStruct(weights_EDG.shape, weights_EDG.dtype),
        flops=2 * len(x_RD) * features * results,
        scalars=2,
    )
    return dx_RD, dweights_EDG, None


grouped_matmul.defvjp(_forward, _backward)
