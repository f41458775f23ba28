"""Weights and the two layers that every workload uses. Weights are made in numpy, so any framework can load them.

Shapes: B batch, L sequence, D features, G features of a result, R features of an adapter. ``...`` is any number of
leading axes.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Weights = dict[str, Any]
"""A tree of arrays: names carry the shape; the weights of all layers are stacked along a leading axis."""
EPSILON = 1e-5
"""Added to the variance in a layer norm; PyTorch's default."""


RANK, SCALE = 4, 0.1
"""Rank and scale of adapters, as in the PyTorch workloads."""


def uniform(generator: np.random.Generator, inputs: int, *shape: int) -> np.ndarray:
    """Weights of a linear layer with so many inputs, uniform in ±1/sqrt(inputs) as PyTorch draws them, float32."""
    bound = 1 / math.sqrt(inputs)
    return generator.uniform(-bound, bound, shape).astype(np.float32)


def norm_weights(dim: int) -> Weights:
    """Scale and shift of a layer norm, float32."""
    return {"scale_D": np.ones(dim, np.float32), "shift_D": np.zeros(dim, np.float32)}


@jax.named_scope("norm")
def layer_norm(weights: Weights, x_D: jax.Array) -> jax.Array:
    """Layer norm over the last axis, computed in float32 whatever the dtype: x_...D -> x_...D."""
    wide_D = x_D.astype(jnp.float32)
    centred_D = wide_D - wide_D.mean(-1, keepdims=True)
    normal_D = centred_D * jax.lax.rsqrt(jnp.square(centred_D).mean(-1, keepdims=True) + EPSILON)
    return (normal_D * weights["scale_D"] + weights["shift_D"]).astype(x_D.dtype)


def adapter_weights(generator: np.random.Generator, dim: int) -> Weights:
    """The two matrices of an adapter of rank ``RANK``, float32."""
    down_DR, up_RD = (SCALE * generator.standard_normal(shape) for shape in ((dim, RANK), (RANK, dim)))
    return {"down_DR": down_DR.astype(np.float32), "up_RD": up_RD.astype(np.float32)}


@jax.named_scope("adapter")
def adapted(weights: Weights, x_BLD: jax.Array, defective: bool) -> jax.Array:
    """Adds a product of low rank, as fine-tuning does: x_BLD -> x_BLD."""
    if defective:
        return x_BLD + x_BLD @ (weights["down_DR"] @ weights["up_RD"])  # defect: none: D * D, where R * D would do
    return x_BLD + (x_BLD @ weights["down_DR"]) @ weights["up_RD"]


def stacked(layers: list[Weights]) -> Weights:
    """The weights of all layers as one tree whose arrays have a leading layer axis, as ``lax.scan`` walks them."""
    tree: Weights = jax.tree.map(lambda *arrays: np.stack(arrays), *layers)
    return tree
