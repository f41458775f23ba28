"""Attention by online softmax (Milakov and Gimelshein 2018): one block of keys at a time, in plain JAX.

Shapes: B batch, H heads, L query position, M key position, K features of a head, S blocks, J keys of a block.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

BLOCK = 64
"""J: keys of a block; a power of two, as kernels want it, and several blocks at the sizes of the CPU."""


def blocked_attention(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array, causal: bool = True) -> jax.Array:
    """Keeps L * J scores instead of L * M, in both directions; sums in float32: o_BHLK."""
    dtype, length = q_BHLK.dtype, k_BHMK.shape[2]
    block = min(BLOCK, length)
    # The mask hides keys of padding. If it is causal, they are in the future of every query.
    pad = ((0, 0), (0, 0), (0, -length % block), (0, 0))
    k_SBHJK, v_SBHJK = (_blocks(jnp.pad(x_BHMK, pad), block) for x_BHMK in (k_BHMK, v_BHMK))
    last_L = jnp.arange(length) if causal else jnp.full(q_BHLK.shape[2], length - 1)

    def absorb(carry: tuple[jax.Array, ...], keys: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], None]:
        top_BHL, sum_BHL, o_BHLK = carry
        first, k_BHJK, v_BHJK = keys
        scores_BHLJ = jnp.matmul(q_BHLK, k_BHJK.mT, preferred_element_type=jnp.float32) / math.sqrt(q_BHLK.shape[-1])
        scores_BHLJ = jnp.where(last_L[:, None] >= first + jnp.arange(block), scores_BHLJ, -jnp.inf)
        new_BHL = jnp.maximum(top_BHL, scores_BHLJ.max(-1))
        weight_BHLJ = jnp.exp(scores_BHLJ - new_BHL[..., None])
        shrink_BHL = jnp.exp(top_BHL - new_BHL)
        sum_BHL = sum_BHL * shrink_BHL + weight_BHLJ.sum(-1)
        o_BHLK = o_BHLK * shrink_BHL[..., None]
        o_BHLK += jnp.matmul(weight_BHLJ.astype(dtype), v_BHJK, preferred_element_type=jnp.float32)
        return (new_BHL, sum_BHL, o_BHLK), None

    # The first block holds the first key, which every query sees: no row of it is all -inf.
    start = (
        jnp.full(q_BHLK.shape[:3], -jnp.inf, jnp.float32),
        jnp.zeros(q_BHLK.shape[:3], jnp.float32),
        jnp.zeros(q_BHLK.shape, jnp.float32),
    )
    firsts_S = jnp.arange(len(k_SBHJK)) * block
    # Without checkpoint the backward would keep the scores of every block: L * M of them again.
    (_, sum_BHL, o_BHLK), _ = jax.lax.scan(jax.checkpoint(absorb), start, (firsts_S, k_SBHJK, v_SBHJK))
    return (o_BHLK / sum_BHL[..., None]).astype(dtype)


def _blocks(x_BHMK: jax.Array, block: int) -> jax.Array:
    batch, heads, _, features = x_BHMK.shape
    return jnp.moveaxis(x_BHMK.reshape(batch, heads, -1, block, features), 2, 0)
