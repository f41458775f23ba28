"""Cross-entropy of the next token over a part of the vocabulary at a time: the logits are never in memory as a whole.

Shapes: T tokens, D model features, V vocabulary, C columns of a part.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

PARTS = 8
"""Parts of the vocabulary; one if they do not divide it."""


def _columns(vocabulary: int) -> int:
    return vocabulary // PARTS if vocabulary % PARTS == 0 else vocabulary


def _part(x_TD: jax.Array, head_DV: jax.Array, part: jax.Array) -> tuple[jax.Array, jax.Array]:
    """logits_TC in float32, and the weights_DC that they are made with."""
    size = _columns(head_DV.shape[1])
    weights_DC = jax.lax.dynamic_slice_in_dim(head_DV, part * size, size, axis=1)
    return (x_TD @ weights_DC).astype(jnp.float32), weights_DC


@jax.custom_vjp
def chunked_loss(x_TD: jax.Array, head_DV: jax.Array, target_T: jax.Array) -> jax.Array:
    """The mean loss in nats, float32, of logits ``x_TD @ head_DV``; the backward computes each part again."""
    return _forward(x_TD, head_DV, target_T)[0]


def _forward(x_TD: jax.Array, head_DV: jax.Array, target_T: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    size = _columns(head_DV.shape[1])

    def absorb(carry: tuple[jax.Array, ...], part: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        top_T, sum_T, own_T = carry
        logits_TC, _ = _part(x_TD, head_DV, part)
        place_T = target_T - part * size
        mine_T1 = jnp.take_along_axis(logits_TC, jnp.clip(place_T, 0, size - 1)[:, None], axis=1)
        own_T = jnp.where((place_T >= 0) & (place_T < size), mine_T1[:, 0], own_T)
        new_T = jnp.maximum(top_T, logits_TC.max(-1))
        return (new_T, sum_T * jnp.exp(top_T - new_T) + jnp.exp(logits_TC - new_T[:, None]).sum(-1), own_T), None

    zeros_T = jnp.zeros(target_T.shape, jnp.float32)
    parts = jnp.arange(head_DV.shape[1] // size)
    (top_T, sum_T, own_T), _ = jax.lax.scan(absorb, (zeros_T - jnp.inf, zeros_T, zeros_T), parts)
    log_T = top_T + jnp.log(sum_T)
    return (log_T - own_T).mean(), (x_TD, head_DV, target_T, log_T)


def _backward(saved: tuple[jax.Array, ...], slope: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x_TD, head_DV, target_T, log_T = saved
    size = _columns(head_DV.shape[1])

    def absorb(carry: tuple[jax.Array, jax.Array], part: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        dx_TD, dhead_DV = carry
        logits_TC, weights_DC = _part(x_TD, head_DV, part)
        is_target_TC = (target_T - part * size)[:, None] == jnp.arange(size)
        dlogits_TC = (slope / len(target_T) * (jnp.exp(logits_TC - log_T[:, None]) - is_target_TC)).astype(x_TD.dtype)
        dx_TD += jnp.matmul(dlogits_TC, weights_DC.T, preferred_element_type=jnp.float32)
        dhead_DC = x_TD.T @ dlogits_TC
        return (dx_TD, jax.lax.dynamic_update_slice_in_dim(dhead_DV, dhead_DC, part * size, axis=1)), None

    start = jnp.zeros(x_TD.shape, jnp.float32), jnp.zeros_like(head_DV)
    (dx_TD, dhead_DV), _ = jax.lax.scan(absorb, start, jnp.arange(head_DV.shape[1] // size))
    return dx_TD.astype(x_TD.dtype), dhead_DV, None


chunked_loss.defvjp(_forward, _backward)
