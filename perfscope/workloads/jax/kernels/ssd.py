"""State space duality (Dao and Gu 2024, Mamba-2): one decay per head, computed by chunks as matrix products.

Shapes: B batch, L sequence, H heads, P features of a head, N states, S chunks, I and J positions of a chunk.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from perfscope.workloads.jax.kernels.launch import launch, padded

CHUNK = 64
"""I: positions of a chunk."""


def chunks(x_BLHP: jax.Array, log_BLH: jax.Array, b_BLN: jax.Array, c_BLN: jax.Array) -> tuple[jax.Array, ...]:
    """x_BHSIP, sums_BHSI of the decays' logarithms within a chunk, b_BSIN and c_BSIN; padded to whole chunks."""
    size = min(CHUNK, x_BLHP.shape[1])
    x_BLHP, log_BLH, b_BLN, c_BLN = (padded(array, 1, size) for array in (x_BLHP, log_BLH, b_BLN, c_BLN))
    batch, length, heads, features = x_BLHP.shape
    x_BHSIP = jnp.moveaxis(x_BLHP.reshape(batch, length // size, size, heads, features), 3, 1)
    log_BHSI = jnp.moveaxis(log_BLH.astype(jnp.float32).reshape(batch, length // size, size, heads), 3, 1)
    parts = (array.reshape(batch, length // size, size, -1) for array in (b_BLN, c_BLN))
    return (x_BHSIP, jnp.cumsum(log_BHSI, -1), *parts)


def unchunked(y_BHSIP: jax.Array, length: int) -> jax.Array:
    """y_BLHP."""
    batch, heads, count, size, features = y_BHSIP.shape
    return jnp.moveaxis(y_BHSIP, 1, 3).reshape(batch, count * size, heads, features)[:, :length]


def chunked(x_BLHP: jax.Array, log_BLH: jax.Array, b_BLN: jax.Array, c_BLN: jax.Array) -> jax.Array:
    """In plain JAX, all chunks at once and a scan over their states: y_BLHP."""
    x_BHSIP, sums_BHSI, b_BSJN, c_BSIN = chunks(x_BLHP, log_BLH, b_BLN, c_BLN)
    size = x_BHSIP.shape[3]
    past_IJ = jnp.tril(jnp.ones((size, size), bool))
    # Masked before the exponential: the future's is large, and its gradient would be infinity times zero.
    between_BHSIJ = jnp.where(past_IJ, sums_BHSI[..., :, None] - sums_BHSI[..., None, :], -jnp.inf)
    scores_BHSIJ = jnp.einsum("bsin,bsjn->bsij", c_BSIN, b_BSJN)[:, None] * jnp.exp(between_BHSIJ)
    y_BHSIP = jnp.einsum("bhsij,bhsjp->bhsip", scores_BHSIJ.astype(x_BLHP.dtype), x_BHSIP)
    left_BHSJ = jnp.exp(sums_BHSI[..., -1:] - sums_BHSI)
    new_BHSNP = jnp.einsum("bsjn,bhsj,bhsjp->bhsnp", b_BSJN.astype(jnp.float32), left_BHSJ, x_BHSIP)

    def advance(state_BHNP: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        decay_BH, new_BHNP = chunk
        return jnp.exp(decay_BH)[..., None, None] * state_BHNP + new_BHNP, state_BHNP

    inputs = jnp.moveaxis(sums_BHSI[..., -1], 2, 0), jnp.moveaxis(new_BHSNP, 2, 0)
    _, states_SBHNP = jax.lax.scan(advance, jnp.zeros_like(inputs[1][0]), inputs)
    y_BHSIP += jnp.einsum("bsin,bhsi,sbhnp->bhsip", c_BSIN, jnp.exp(sums_BHSI), states_SBHNP).astype(x_BLHP.dtype)
    return unchunked(y_BHSIP, x_BLHP.shape[1])


def _kernel(x_ref: Any, down_ref: Any, across_ref: Any, b_ref: Any, c_ref: Any, y_ref: Any) -> None:
    """All chunks of one head, one after the other; the state stays on chip. ``down``, ``across``: sums as I1 and 1J."""
    count, size = x_ref.shape[:2]
    past_IJ = jax.lax.broadcasted_iota(jnp.int32, (size, size), 0) >= jax.lax.broadcasted_iota(
        jnp.int32, (size, size), 1
    )

    def advance(chunk: jax.Array, state_NP: jax.Array) -> jax.Array:
        x_JP, b_JN, c_IN = x_ref[chunk], b_ref[chunk], c_ref[chunk]
        sums_I1, sums_1J = down_ref[chunk], across_ref[chunk]
        scores_IJ = jnp.dot(c_IN, b_JN.T, preferred_element_type=jnp.float32)
        scores_IJ *= jnp.exp(jnp.where(past_IJ, sums_I1 - sums_1J, -jnp.inf))
        y_IP = jnp.dot(scores_IJ.astype(x_JP.dtype), x_JP, preferred_element_type=jnp.float32)
        y_IP += jnp.exp(sums_I1) * jnp.dot(c_IN.astype(jnp.float32), state_NP, preferred_element_type=jnp.float32)
        y_ref[chunk] = y_IP.astype(y_ref.dtype)
        # The decays are at most 1, so the last sum is the least.
        last_11 = sums_I1.min(0, keepdims=True)
        weighted_JN = (jnp.exp(last_11 - sums_I1) * b_JN).astype(x_JP.dtype)
        return jnp.exp(last_11) * state_NP + jnp.dot(weighted_JN.T, x_JP, preferred_element_type=jnp.float32)

    jax.lax.fori_loop(0, count, advance, jnp.zeros((b_ref.shape[-1], x_ref.shape[-1]), jnp.float32))


@jax.custom_vjp
def ssd(x_BLHP: jax.Array, log_BLH: jax.Array, b_BLN: jax.Array, c_BLN: jax.Array) -> jax.Array:
    """The same in one kernel; ``log_BLH``: at most 0. The backward is that of ``chunked``: y_BLHP."""
    x_BHSIP, sums_BHSI, b_BSJN, c_BSIN = chunks(x_BLHP, log_BLH, b_BLN, c_BLN)
    batch, heads, count, size, features = x_BHSIP.shape
    states = b_BSJN.shape[-1]

    def of_head(rows: int, columns: int) -> Any:
        return pl.BlockSpec((None, None, count, rows, columns), lambda b, h: (b, h, 0, 0, 0))

    shared = pl.BlockSpec((None, count, size, states), lambda b, h: (b, 0, 0, 0))
    y_BHSIP = launch(
        _kernel,
        (x_BHSIP, sums_BHSI[..., None], sums_BHSI[..., None, :], b_BSJN, c_BSIN),
        name="ssd",
        grid=(batch, heads),
        in_specs=(of_head(size, features), of_head(size, 1), of_head(1, size), shared, shared),
        out_specs=of_head(size, features),
        out_shape=jax.ShapeDtypeStruct(x_BHSIP.shape, x_BHSIP.dtype),
        flops=2 * batch * heads * count * (size * size * (states + features) + 2 * size * states * features),
        transcendentals=batch * heads * count * size * (size + 2),
    )
    return unchunked(y_BHSIP, x_BLHP.shape[1])


def _forward(*inputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return ssd(*inputs), inputs


def _backward(inputs: tuple[jax.Array, ...], dy_BLHP: jax.Array) -> tuple[jax.Array, ...]:
    gradients: tuple[jax.Array, ...] = jax.vjp(chunked, *inputs)[1](dy_BLHP)
    return gradients


ssd.defvjp(_forward, _backward)
