"""JAX twins of the attention workload with an error each, as they happen when a model is ported."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from perfscope.workloads.jax import attention, layers, training
from perfscope.workloads.twins import attention_jax


def transposed_weight() -> Any:
    """The square output projection of attention is used the wrong way round."""
    model, weights, inputs = attention_jax()
    block = model.block.attention

    def wrong(weights: Any, x_BLD: jax.Array) -> jax.Array:
        out_HKD = weights["out_HKD"]
        turned = out_HKD.reshape(out_HKD.shape[-1], -1).T.reshape(out_HKD.shape)
        return block({**weights, "out_HKD": turned}, x_BLD)

    model.block.attention = wrong
    return model, weights, inputs


def wrong_epsilon() -> Any:
    """Flax's default in place of PyTorch's, in the last norm only."""
    right = training.layer_norm

    def wrong(weights: Any, x_D: jax.Array) -> jax.Array:
        epsilon, layers.EPSILON = layers.EPSILON, 1e-6
        try:
            return right(weights, x_D)
        finally:
            layers.EPSILON = epsilon

    training.layer_norm = wrong
    return attention_jax()


def missing_scale() -> Any:
    """The scores are not divided by the square root of the features of a head."""

    def wrong(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array, window: int | None = None) -> jax.Array:
        length = q_BHLK.shape[-2]
        past_LM = jnp.tril(jnp.ones((length, length), bool))
        scores_BHLM = jnp.where(past_LM, q_BHLK @ k_BHMK.mT, -jnp.inf)
        return jax.nn.softmax(scores_BHLM) @ v_BHMK

    attention.naive_attention = wrong
    return attention_jax()
