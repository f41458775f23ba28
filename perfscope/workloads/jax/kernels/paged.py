"""Attention of one new position per text over a cache in pages (Kwon et al. 2023), read where they are.

Shapes: B batch, H heads, P pages, J positions of a page, S pages of a text, K features of a head.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from perfscope.workloads.jax.kernels.launch import launch, size_of


def _kernel(table_ref: Any, length_ref: Any, q_ref: Any, pages_ref: Any, o_ref: Any) -> None:
    """One head of one text, page by page, with an online softmax: writes o_1K."""
    text, length = pl.program_id(0), length_ref[0]
    size = pages_ref.shape[2]
    q_1K = q_ref[...].astype(jnp.float32) / math.sqrt(q_ref.shape[-1])

    def absorb(place: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top_11, sum_11, o_1K = carry
        page = table_ref[text, place]
        scores_J1 = (pages_ref[0, page].astype(jnp.float32) * q_1K).sum(-1, keepdims=True)
        position_J1 = place * size + jax.lax.broadcasted_iota(jnp.int32, (size, 1), 0)
        scores_J1 = jnp.where(position_J1 < length, scores_J1, -jnp.inf)
        new_11 = jnp.maximum(top_11, scores_J1.max(0, keepdims=True))
        weight_J1, shrink_11 = jnp.exp(scores_J1 - new_11), jnp.exp(top_11 - new_11)
        o_1K = o_1K * shrink_11 + (weight_J1 * pages_ref[1, page].astype(jnp.float32)).sum(0, keepdims=True)
        return new_11, sum_11 * shrink_11 + weight_J1.sum(0, keepdims=True), o_1K

    # The first page has a position that is seen.
    start = jnp.full((1, 1), -jnp.inf, jnp.float32), jnp.zeros((1, 1), jnp.float32), jnp.zeros(q_1K.shape, jnp.float32)
    used = jax.lax.div(length + size - 1, jnp.int32(size))
    _, sum_11, o_1K = jax.lax.fori_loop(0, used, absorb, start)
    o_ref[...] = (o_1K / sum_11).astype(o_ref.dtype)


def paged_attention(q_BHK: jax.Array, pages_2PHJK: jax.Array, table_BS: jax.Array, length: jax.Array) -> jax.Array:
    """Attention to the first ``length`` positions, at least one, of each text: o_BHK.

    ``table_BS``: the pages of each text, in order, int32. A TPU must hold all pages of a head on chip.
    """
    batch, heads, features = q_BHK.shape
    _, pages, _, size, _ = pages_2PHJK.shape
    one = pl.BlockSpec((None, None, 1, features), lambda b, h: (b, h, 0, 0))
    positions = table_BS.size * size * heads
    o_BH1K: jax.Array = launch(
        _kernel,
        (table_BS, length.reshape(1).astype(jnp.int32), q_BHK[:, :, None], pages_2PHJK),
        name="paged_attention",
        grid=(batch, heads),
        in_specs=(
            pl.BlockSpec(table_BS.shape, lambda b, h: (0, 0)),
            pl.BlockSpec((1,), lambda b, h: (0,)),
            one,
            pl.BlockSpec((2, pages, None, size, features), lambda b, h: (0, 0, h, 0, 0)),
        ),
        out_specs=one,
        out_shape=jax.ShapeDtypeStruct((batch, heads, 1, features), q_BHK.dtype),
        flops=2 * 2 * positions * features,
        transcendentals=positions,
        moved=2 * positions * features * pages_2PHJK.dtype.itemsize + 2 * size_of(q_BHK),
        scalars=2,
    )
    return o_BH1K[:, :, 0]
