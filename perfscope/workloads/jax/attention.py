"""A transformer in JAX. Variants of attention: ``naive`` (scores in memory), ``blocked`` (online softmax), ``pallas``.

Shapes: B batch, L query position, M key position, D model features, C = 3 (query, key, value), H heads,
K features of a head, F hidden, I positions of a block of queries, J positions of a block of keys.

    python -m perfscope.workloads.jax.attention --variant naive
    python -m perfscope.workloads.jax.attention --variant blocked --size gpu

On the CPU the Pallas kernel is interpreted: right, and slow. Its backward is that of ``blocked``.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from perfscope.workloads.jax.layers import Weights, layer_norm, norm_weights, uniform
from perfscope.workloads.jax.online import blocked_attention
from perfscope.workloads.jax.options import parse
from perfscope.workloads.jax.training import train
from perfscope.workloads.options import Size

VARIANTS = ("naive", "blocked", "pallas")
SIZES = {
    "tiny": Size(batch=4, seq=32, dim=64, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=256, dim=128, heads=4, layers=2),
    "gpu": Size(batch=8, seq=1024, dim=1024, heads=16, layers=4, vocab=4096),
}


def naive_attention(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array) -> jax.Array:
    """Causal attention, every step of it a trip through memory: o_BHLK."""
    length = q_BHLK.shape[-2]
    past_LM = jnp.tril(jnp.ones((length, length), bool))
    scores_BHLM = q_BHLK @ k_BHMK.mT / math.sqrt(q_BHLK.shape[-1])  # defect: unfused_attention: L * M scores in memory
    scores_BHLM = jnp.where(past_LM, scores_BHLM.astype(jnp.float32), -jnp.inf)
    return jax.nn.softmax(scores_BHLM).astype(q_BHLK.dtype) @ v_BHMK


def pallas_attention(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array) -> jax.Array:
    """The same in one kernel, which keeps the scores on chip: o_BHLK."""
    # Loaded here: the other variants run where Pallas does not load (jax 0.6 without absl-py).
    from perfscope.workloads.jax.flash import flash_attention

    return flash_attention(q_BHLK, k_BHMK, v_BHMK)


ATTENTION = {"naive": naive_attention, "blocked": blocked_attention, "pallas": pallas_attention}


class Block:
    """Pre-norm transformer block: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        self.size, self.attend = size, ATTENTION[variant]

    def initial(self, generator: np.random.Generator) -> Weights:
        """The weights of one layer, float32."""
        dim, heads = self.size.dim, self.size.heads
        return {
            "norm1": norm_weights(dim),
            "qkv_DCHK": uniform(generator, dim, dim, 3, heads, dim // heads),
            "out_HKD": uniform(generator, dim, heads, dim // heads, dim),
            "norm2": norm_weights(dim),
            "up_DF": uniform(generator, dim, dim, 4 * dim),
            "up_F": uniform(generator, dim, 4 * dim),
            "down_FD": uniform(generator, 4 * dim, 4 * dim, dim),
            "down_D": uniform(generator, 4 * dim, dim),
        }

    def __call__(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """x_BLD."""
        x_BLD = checkpoint_name(x_BLD + self.attention(weights, x_BLD), "middle")
        return x_BLD + self.feed_forward(weights, x_BLD)

    @jax.named_scope("attention")
    def attention(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """The term that attention adds to x_BLD."""
        z_BLD = layer_norm(weights["norm1"], x_BLD)
        q_BHLK, k_BHMK, v_BHMK = checkpoint_name(jnp.einsum("bld,dchk->cbhlk", z_BLD, weights["qkv_DCHK"]), "qkv")
        o_BHLK = self.attend(q_BHLK, k_BHMK, v_BHMK)
        return jnp.einsum("bhlk,hkd->bld", o_BHLK, weights["out_HKD"])

    @jax.named_scope("feed_forward")
    def feed_forward(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """The term that the hidden layer adds to x_BLD."""
        h_BLF = layer_norm(weights["norm2"], x_BLD) @ weights["up_DF"] + weights["up_F"]
        g_BLF = jax.nn.gelu(h_BLF, approximate=False)
        g_BLF = checkpoint_name(g_BLF, "hidden")  # defect: excess_remat: the backward needs h_BLF
        return g_BLF @ weights["down_FD"] + weights["down_D"]


if __name__ == "__main__":
    train(Block, parse(__doc__ or "", VARIANTS, SIZES))
