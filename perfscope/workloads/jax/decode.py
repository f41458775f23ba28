"""Inference of a decoder in JAX: one call that reads the prompts, then one call per token, with a cache.

    python -m perfscope.workloads.jax.decode --variant carry
    python -m perfscope.workloads.jax.decode --variant slices

Variants of the cache in the scan over layers: ``carry`` (one array, written in place), ``slices`` (each layer's part
comes as ``xs`` and goes as ``ys``), ``growing`` (joined with each part, a new program for each length). Without a scan
and with a cache in pages, which lie in any order: ``paged-gather`` (brought together for each token) and ``paged`` (a
Pallas kernel reads them where they are). All write the same tokens. ``--steps`` is the number of tokens, ``--seq`` the
length of the prompts.

Shapes: P pages, J positions of a page, N pages of a text, S layers, B batch, L new positions, T positions of the cache,
D model features, H heads, K features of a head, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax.data import batches, device_of
from perfscope.workloads.jax.layers import Weights, layer_norm, norm_weights, stacked, uniform
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.options import Options, Size

VARIANTS = ("carry", "slices", "growing", "paged-gather", "paged")
PAGE = 16
"""J: positions of a page."""
SIZES = {
    "tiny": Size(batch=8, seq=64, dim=64, heads=4, layers=2, vocab=64),
    "cpu": Size(batch=16, seq=256, dim=256, heads=8, layers=4),
    "gpu": Size(batch=64, seq=2048, dim=4096, heads=32, layers=8, vocab=32_000),
}
Cache = Any
"""An array for all layers, or a tuple of the pages of each."""
DEFECTS = {
    "no-donation": "keep the old cache next to the new one",
}


def initial(options: Options) -> Weights:
    """Weights of the decoder, the same for every variant."""
    size, generator = options.size, np.random.default_rng(options.seed)
    dim = size.dim
    layers = [
        {
            "norm": norm_weights(dim),
            "qkv_DE": uniform(generator, dim, dim, 3 * dim),
            "out_DD": uniform(generator, dim, dim, dim),
        }
        for _ in range(size.layers)
    ]
    embedding_VD = generator.standard_normal((size.vocab, dim)).astype(np.float32)
    weights = {"embedding_VD": embedding_VD, "head_DV": uniform(generator, dim, dim, size.vocab)}
    tree: Weights = jax.tree.map(lambda array: array.astype(options.dtype), {**weights, "layers": stacked(layers)})
    return tree


@jax.named_scope("attention")
def attend(weights: Weights, x_BLD: jax.Array, q_BLHK: jax.Array, kv_2BTHK: jax.Array, first: jax.Array) -> jax.Array:
    """Attention of new positions, of which the first is ``first``, over the cache: x_BLD -> x_BLD."""
    places_T, own_L = jnp.arange(kv_2BTHK.shape[2]), first + jnp.arange(x_BLD.shape[1])
    scores_BHLT = jnp.einsum("blhk,bthk->bhlt", q_BLHK, kv_2BTHK[0]) / q_BLHK.shape[-1] ** 0.5
    scores_BHLT = jnp.where(places_T <= own_L[:, None], scores_BHLT, jnp.finfo(scores_BHLT.dtype).min)
    mixed_BLHK = jnp.einsum("bhlt,bthk->blhk", jax.nn.softmax(scores_BHLT), kv_2BTHK[1])
    return x_BLD + mixed_BLHK.reshape(x_BLD.shape) @ weights["out_DD"]


@jax.named_scope("projections")
def projected(weights: Weights, x_BLD: jax.Array, heads: int) -> jax.Array:
    """Queries, keys and values of new positions: qkv_3BLHK."""
    qkv_BLE = layer_norm(weights["norm"], x_BLD) @ weights["qkv_DE"]
    return jnp.moveaxis(qkv_BLE.reshape(*x_BLD.shape[:2], 3, heads, -1), 2, 0)


def in_slices(
    heads: int, variant: str, weights: Weights, x_BLD: jax.Array, cache_S2BTHK: jax.Array, first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """All layers; each gets its part of the cache and returns it."""

    def layer(x_BLD: jax.Array, given: tuple[Weights, jax.Array]) -> tuple[jax.Array, jax.Array]:
        own, kv_2BTHK = given
        qkv_3BLHK = projected(own, x_BLD, heads)
        with jax.named_scope("cache"):
            if variant == "growing":
                kv_2BTHK = jnp.concatenate((kv_2BTHK, qkv_3BLHK[1:]), axis=2)  # a new length: a new program
            else:
                kv_2BTHK = jax.lax.dynamic_update_slice(kv_2BTHK, qkv_3BLHK[1:], (0, 0, first, 0, 0))
        return attend(own, x_BLD, qkv_3BLHK[0], kv_2BTHK, first), kv_2BTHK

    given = weights["layers"], cache_S2BTHK
    with jax.named_scope("blocks"):
        x_BLD, cache_S2BTHK = jax.lax.scan(layer, x_BLD, given)  # defect: data_movement: copies all of the cache
    return x_BLD, cache_S2BTHK


def in_carry(
    heads: int, weights: Weights, x_BLD: jax.Array, cache_S2BTHK: jax.Array, first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """All layers; the cache stays one array that each writes into."""
    Carry = tuple[jax.Array, jax.Array]

    def layer(carry: Carry, given: tuple[Weights, jax.Array]) -> tuple[Carry, None]:
        x_BLD, cache_S2BTHK = carry
        own, number = given
        qkv_3BLHK = projected(own, x_BLD, heads)
        place = (number, 0, 0, first, 0, 0)
        with jax.named_scope("cache"):
            cache_S2BTHK = jax.lax.dynamic_update_slice(cache_S2BTHK, qkv_3BLHK[None, 1:], place)
        return (attend(own, x_BLD, qkv_3BLHK[0], cache_S2BTHK[number], first), cache_S2BTHK), None

    numbers = jnp.arange(cache_S2BTHK.shape[0])
    with jax.named_scope("blocks"):
        (x_BLD, cache_S2BTHK), _ = jax.lax.scan(layer, (x_BLD, cache_S2BTHK), (weights["layers"], numbers))
    return x_BLD, cache_S2BTHK


def paged(
    variant: str,
    table_BN: jax.Array,
    weights: Weights,
    x_BLD: jax.Array,
    cache: tuple[jax.Array, ...],
    first: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """All layers; ``cache`` has the pages_2PHJK of each."""
    place_L, table_BN = first + jnp.arange(x_BLD.shape[1]), jnp.asarray(table_BN)
    page_BL, slot_L = table_BN[:, place_L // PAGE], place_L % PAGE
    written = []
    for number, pages_2PHJK in enumerate(cache):
        own = jax.tree.map(lambda array, at=number: array[at], weights["layers"])
        qkv_3BLHK = projected(own, x_BLD, pages_2PHJK.shape[2])
        with jax.named_scope("cache"):
            pages_2PHJK = pages_2PHJK.at[:, page_BL, :, slot_L].set(jnp.moveaxis(qkv_3BLHK[1:], 0, 2))
        written.append(pages_2PHJK)
        if variant == "paged" and x_BLD.shape[1] == 1:
            with jax.named_scope("attention"):
                x_BLD += pages_attended(qkv_3BLHK[0], pages_2PHJK, table_BN, first) @ own["out_DD"]
            continue
        with jax.named_scope("cache"):
            kv_2BNHJK = pages_2PHJK[:, table_BN]  # XLA fuses it into the attention of one position on GPUs
            kv_2BTHK = jnp.moveaxis(kv_2BNHJK, 3, 4).reshape(2, len(table_BN), -1, *qkv_3BLHK.shape[3:])
        x_BLD = attend(own, x_BLD, qkv_3BLHK[0], kv_2BTHK, first)
    return x_BLD, tuple(written)


def pages_attended(q_B1HK: jax.Array, pages_2PHJK: jax.Array, table_BN: jax.Array, first: jax.Array) -> jax.Array:
    """Attention of one new position, by the kernel: y_B1D."""
    # Loaded here: the other variants run where Pallas does not load (jax 0.6 without absl-py).
    from perfscope.workloads.jax.kernels.paged import paged_attention

    return paged_attention(q_B1HK[:, 0], pages_2PHJK, table_BN, first + 1).reshape(len(q_B1HK), 1, -1)


def pages(options: Options) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The pages of each text, in any order, and each layer's empty pages."""
    size, count = options.size, -(-(options.size.seq + options.steps) // PAGE)
    table_BN = np.random.default_rng(options.seed).permutation(size.batch * count).reshape(size.batch, count)
    shape = (2, table_BN.size, size.heads, PAGE, size.dim // size.heads)
    return table_BN.astype(np.int32), (np.zeros(shape, jnp.dtype(options.dtype)),) * size.layers


def decode(options: Options) -> list[int]:
    """Writes ``options.steps`` tokens after the prompts, each the likeliest; prints and returns the first text's."""
    size, device = options.size, device_of(options)
    weights = jax.device_put(initial(options), device)
    table_BN, empty_pages = pages(options)
    layers = {
        "carry": functools.partial(in_carry, size.heads),
        "slices": functools.partial(in_slices, size.heads, "slices"),
        "growing": functools.partial(in_slices, size.heads, "growing"),
        "paged-gather": functools.partial(paged, "paged-gather", table_BN),
        "paged": functools.partial(paged, "paged", table_BN),
    }[options.variant]

    kept = "no-donation" in options.defects or options.variant == "growing"  # a cache that grows cannot be written into

    @functools.partial(jax.jit, donate_argnames=() if kept else ("cache",))
    def token(weights: Weights, tokens_BL: jax.Array, cache: Cache, first: jax.Array) -> tuple[jax.Array, Cache]:
        with jax.named_scope("embedding"):
            x_BLD = weights["embedding_VD"][tokens_BL]
        x_BLD, cache = layers(weights, x_BLD, cache, first)
        with jax.named_scope("head"):
            return (x_BLD[:, -1] @ weights["head_DV"]).argmax(-1), cache

    length = 0 if options.variant == "growing" else size.seq + options.steps
    shape = (size.layers, 2, size.batch, length, size.heads, size.dim // size.heads)
    is_paged = options.variant.startswith("paged")
    held: Cache = jax.device_put(empty_pages if is_paged else jnp.zeros(shape, options.dtype), device)
    tokens_BL = jax.device_put(next(iter(batches(options)))[:, :-1], device)
    first, written = 0, []
    for _ in range(options.steps):
        token_B, held = token(weights, tokens_BL, held, first)
        first, tokens_BL = first + tokens_BL.shape[1], token_B[:, None]
        written.append(token_B[0])
    tokens = [int(each) for each in jax.device_get(written)]
    print(*tokens)
    return tokens


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    decode(parsed())
