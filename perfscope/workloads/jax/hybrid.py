"""State space and attention layers in one JAX model: each `attention` layer follows ``RATIO`` layers of `ssm`.

    python -m perfscope.workloads.jax.hybrid --variant fused
    python -m perfscope.workloads.jax.hybrid --variant scan
    python -m perfscope.workloads.jax.hybrid --variant kernels --size gpu

``--layers`` counts groups of ``RATIO`` + 1 layers. ``--heads`` is the number of heads and the number of states.
"""

from __future__ import annotations

import jax
import numpy as np

from perfscope.workloads.jax import attention, ssm
from perfscope.workloads.jax.layers import Weights, stacked
from perfscope.workloads.jax.options import parse
from perfscope.workloads.jax.training import train
from perfscope.workloads.options import Size

PARTS = {
    "fused": ("associative", "blocked"),
    "scan": ("scan", "blocked"),
    "naive": ("associative", "naive"),
    "kernels": ("kernel", "pallas"),
}
"""Variants of `ssm` and of `attention`. ``scan`` and ``naive`` have the defect of one of them."""
VARIANTS = tuple(PARTS)
SIZES = {
    "tiny": Size(batch=4, seq=64, dim=32, heads=4, layers=1, vocab=64),
    "cpu": Size(batch=2, seq=256, dim=128, heads=4, layers=1),
    "gpu": Size(batch=8, seq=1024, dim=2048, heads=16, layers=4, vocab=32_000),
}
RATIO = 3
"""State space layers per attention layer."""


class Group:
    """``RATIO`` state space layers and an attention layer: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        recurrence, attend = PARTS[variant]
        self.ssm, self.attention = ssm.Block(size, recurrence), attention.Block(size, attend)

    def initial(self, generator: np.random.Generator) -> Weights:
        """The weights of a group, float32."""
        spaces = stacked([self.ssm.initial(generator) for _ in range(RATIO)])
        return {"ssm": spaces, "attention": self.attention.initial(generator)}

    def __call__(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """x_BLD."""
        x_BLD, _ = jax.lax.scan(lambda x_BLD, own: (self.ssm(own, x_BLD), None), x_BLD, weights["ssm"])
        return self.attention(weights["attention"], x_BLD)


if __name__ == "__main__":
    train(Group, parse(__doc__ or "", VARIANTS, SIZES))
