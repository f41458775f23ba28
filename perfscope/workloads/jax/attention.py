"""A transformer in JAX. Variants of attention: ``naive`` (scores in memory), ``blocked`` (online softmax), ``pallas``.

Further: ``library`` is ``jax.nn.dot_product_attention``; ``window`` sees the last ``WINDOW`` of the sequence and
``shared`` has half as many heads of keys and values as of queries, both by the kernels of ``pallas``;
``window-naive`` and ``shared-naive`` are the same written out.

Shapes: B batch, L query position, M key position, D model features, C = 3 (query, key, value), H heads,
G heads of keys and values, K features of a head, F hidden.

    python -m perfscope.workloads.jax.attention --variant naive
    python -m perfscope.workloads.jax.attention --variant blocked --size gpu

On the CPU the Pallas kernels are interpreted: right, and slow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from perfscope.workloads.jax.layers import Weights, layer_norm, norm_weights, uniform
from perfscope.workloads.jax.online import blocked_attention
from perfscope.workloads.jax.options import parse
from perfscope.workloads.jax.training import train
from perfscope.workloads.options import Size


def naive_attention(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array, window: int | None = None) -> jax.Array:
    """Causal attention, every step of it a trip through memory: o_BHLK."""
    length = q_BHLK.shape[-2]
    past_LM = causal_mask(length, window)
    scores_BHLM = q_BHLK @ k_BHMK.mT / math.sqrt(q_BHLK.shape[-1])  # defect: unfused_attention: L * M scores in memory
    scores_BHLM = jnp.where(past_LM, scores_BHLM.astype(jnp.float32), -jnp.inf)
    return jax.nn.softmax(scores_BHLM).astype(q_BHLK.dtype) @ v_BHMK


def causal_mask(length: int, window: int | None) -> jax.Array:
    """Whether a query sees a key, at most the last ``window`` of them: past_LM."""
    past_LM = jnp.tril(jnp.ones((length, length), bool))
    return past_LM if window is None else past_LM & ~jnp.tril(jnp.ones((length, length), bool), -window)


VARIANTS = ("naive", "blocked", "pallas", "library", "window-naive", "window", "shared-naive", "shared")
WINDOW = 0.25
"""Keys that a query of ``window`` sees, as a share of the sequence."""
SIZES = {
    "tiny": Size(batch=4, seq=32, dim=64, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=256, dim=128, heads=4, layers=2),
    "gpu": Size(batch=8, seq=1024, dim=1024, heads=16, layers=4, vocab=4096),
}


def pallas_attention(q_BHLK: jax.Array, k_BGMK: jax.Array, v_BGMK: jax.Array, window: int | None = None) -> jax.Array:
    """The same in kernels that keep the scores on chip, G heads of keys for H of queries: o_BHLK."""
    # Loaded here: the other variants run where Pallas does not load (jax 0.6 without absl-py).
    from perfscope.workloads.jax.kernels.flash import flash_attention

    return flash_attention(q_BHLK, k_BGMK, v_BGMK, window)


def library_attention(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array) -> jax.Array:
    """Attention of the library: cuDNN's kernel on a GPU for 16-bit values, elsewhere scores in memory: o_BHLK."""
    cudnn = jax.default_backend() == "gpu" and q_BHLK.dtype.itemsize == 2
    q_BLHK, k_BMHK, v_BMHK = (x_BHLK.swapaxes(1, 2) for x_BHLK in (q_BHLK, k_BHMK, v_BHMK))
    implementation: Literal["cudnn"] | None = "cudnn" if cudnn else None
    o_BLHK = jax.nn.dot_product_attention(q_BLHK, k_BMHK, v_BMHK, is_causal=True, implementation=implementation)
    return o_BLHK.swapaxes(1, 2)


def repeated_attention(q_BHLK: jax.Array, k_BGMK: jax.Array, v_BGMK: jax.Array) -> jax.Array:
    """Keys and values repeated for every head of queries, then as ``naive``: o_BHLK."""
    repeats = q_BHLK.shape[1] // k_BGMK.shape[1]
    return naive_attention(q_BHLK, jnp.repeat(k_BGMK, repeats, 1), jnp.repeat(v_BGMK, repeats, 1))


def attention_of(variant: str, size: Size) -> Callable[..., jax.Array]:
    """The attention of a variant."""
    window = max(1, int(WINDOW * size.seq))
    kinds: dict[str, Callable[..., jax.Array]] = {
        "naive": naive_attention,
        "blocked": blocked_attention,
        "pallas": pallas_attention,
        "library": library_attention,
        "window-naive": functools.partial(naive_attention, window=window),
        "window": functools.partial(pallas_attention, window=window),
        "shared-naive": repeated_attention,
        "shared": pallas_attention,
    }
    return kinds[variant]


class Block:
    """Pre-norm transformer block: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        self.size, self.attend = size, attention_of(variant, size)
        self.groups = max(1, size.heads // 2) if variant.startswith("shared") else size.heads

    def initial(self, generator: np.random.Generator) -> Weights:
        """The weights of one layer, float32."""
        dim, heads = self.size.dim, self.size.heads
        if self.groups == heads:
            projections = {"qkv_DCHK": uniform(generator, dim, dim, 3, heads, dim // heads)}
        else:
            projections = {
                "q_DHK": uniform(generator, dim, dim, heads, dim // heads),
                "kv_DCGK": uniform(generator, dim, dim, 2, self.groups, dim // heads),
            }
        return {
            "norm1": norm_weights(dim),
            **projections,
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
        if "qkv_DCHK" in weights:
            q_BHLK, k_BGMK, v_BGMK = checkpoint_name(jnp.einsum("bld,dchk->cbhlk", z_BLD, weights["qkv_DCHK"]), "qkv")
        else:
            q_BHLK = checkpoint_name(jnp.einsum("bld,dhk->bhlk", z_BLD, weights["q_DHK"]), "qkv")
            k_BGMK, v_BGMK = checkpoint_name(jnp.einsum("bld,dcgk->cbglk", z_BLD, weights["kv_DCGK"]), "qkv")
        o_BHLK = self.attend(q_BHLK, k_BGMK, v_BGMK)
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
