"""Causal attention as Pallas kernels that keep the scores on chip (Dao et al. 2022, Dao 2023), forward and backward.

Also with a sliding window, and with fewer heads of keys than of queries, which are not repeated in memory. `part` and
`part_gradients` are attention to some of the keys, to be merged with that to others.

Shapes: B batch, H heads, G heads of keys and values, N = B * G, R = H / G, L query position, M key position,
K features of a head, I queries of a block, J keys of a block.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from perfscope.workloads.jax.kernels.launch import launch, padded
from perfscope.workloads.jax.online import BLOCK

Residuals = tuple[jax.Array, ...]
EVERY = 0
"""Window of queries that see every key, those after them too."""


def _seen(row: Any, column: Any, block: int, window: int, length: int) -> jax.Array:
    """Whether queries of block ``row`` see keys of block ``column``, of ``length`` in all: seen_IJ."""
    key_IJ = column * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 1)
    if window == EVERY:
        return key_IJ < length
    past_IJ = row * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 0) - key_IJ
    return (past_IJ >= 0) & (past_IJ < window)


def _scores(q_IK: jax.Array, k_JK: jax.Array) -> jax.Array:
    return jnp.dot(q_IK, k_JK.T, preferred_element_type=jnp.float32) / math.sqrt(q_IK.shape[-1])


def _keys(row: Any, block: int, window: int, blocks: int) -> tuple[Any, Any]:
    """The first block of keys that a block of queries sees, and the one after the last."""
    if window == EVERY:
        return 0, blocks
    return _whole(jnp.maximum(0, row * block - window + 1), block), row + 1


def _queries(column: Any, block: int, window: int, blocks: int) -> tuple[Any, Any]:
    """The first block of queries that see a block of keys, and the one after the last."""
    if window == EVERY:
        return 0, blocks
    return column, jnp.minimum(blocks, _whole(column * block + block + window - 2, block) + 1)


def _whole(number: Any, block: int) -> Any:
    """Whole blocks in a number that is not negative; ``//`` looks at the sign, which needs a device on TPU."""
    return jax.lax.div(number, jnp.int32(block))


def _forward_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any, log_ref: Any, *, block: int, window: int, length: int
) -> None:
    """One block of queries against the keys that it sees: writes o_IK, and the logarithm of its weights' sum."""
    row = pl.program_id(2)
    q_IK = q_ref[...]

    def absorb(column: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top_I, sum_I, o_IK = carry
        keys = pl.ds(column * block, block)
        scores_IJ = jnp.where(_seen(row, column, block, window, length), _scores(q_IK, k_ref[keys, :]), -jnp.inf)
        new_I = jnp.maximum(top_I, scores_IJ.max(-1))
        # A row that has seen no key yet has no top: exp(-inf - 0) is 0.
        safe_I = jnp.where(new_I == -jnp.inf, 0.0, new_I)
        weight_IJ = jnp.exp(scores_IJ - safe_I[:, None])
        shrink_I = jnp.exp(top_I - safe_I)
        o_JK = jnp.dot(weight_IJ.astype(v_ref.dtype), v_ref[keys, :], preferred_element_type=jnp.float32)
        return new_I, sum_I * shrink_I + weight_IJ.sum(-1), o_IK * shrink_I[:, None] + o_JK

    start = (
        jnp.full((block,), -jnp.inf, jnp.float32),
        jnp.zeros((block,), jnp.float32),
        jnp.zeros(q_IK.shape, jnp.float32),
    )
    first, end = _keys(row, block, window, k_ref.shape[0] // block)
    top_I, sum_I, o_IK = jax.lax.fori_loop(first, end, absorb, start)
    o_ref[...] = (o_IK / sum_I[:, None]).astype(o_ref.dtype)
    log_ref[...] = (top_I + jnp.log(sum_I))[:, None]


def _query_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    do_ref: Any,
    log_ref: Any,
    delta_ref: Any,
    dq_ref: Any,
    *,
    block: int,
    window: int,
    length: int,
) -> None:
    """The gradient of one block of queries: writes dq_IK."""
    row = pl.program_id(2)
    q_IK, do_IK = q_ref[...], do_ref[...]
    log_I1, delta_I1 = log_ref[...], delta_ref[...]

    def absorb(column: jax.Array, dq_IK: jax.Array) -> jax.Array:
        keys = pl.ds(column * block, block)
        k_JK = k_ref[keys, :]
        weight_IJ = jnp.where(_seen(row, column, block, window, length), jnp.exp(_scores(q_IK, k_JK) - log_I1), 0.0)
        slope_IJ = weight_IJ * (jnp.dot(do_IK, v_ref[keys, :].T, preferred_element_type=jnp.float32) - delta_I1)
        return dq_IK + jnp.dot(slope_IJ.astype(k_JK.dtype), k_JK, preferred_element_type=jnp.float32)

    first, end = _keys(row, block, window, k_ref.shape[0] // block)
    dq_IK = jax.lax.fori_loop(first, end, absorb, jnp.zeros(q_IK.shape, jnp.float32))
    dq_ref[...] = (dq_IK / math.sqrt(q_IK.shape[-1])).astype(dq_ref.dtype)


def _key_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, log_ref: Any, delta_ref: Any, dk_ref: Any, dv_ref: Any,
    *, block: int, window: int, length: int,
) -> None:  # fmt: skip
    """The gradients of one block of keys and values, from the queries of all heads that see it: dk_JK, dv_JK."""
    column = pl.program_id(1)
    k_JK, v_JK = k_ref[...], v_ref[...]
    repeats = q_ref.shape[0]
    first, end = _queries(column, block, window, q_ref.shape[1] // block)

    def absorb(row: jax.Array, carry: tuple[jax.Array, jax.Array], repeat: int) -> tuple[jax.Array, jax.Array]:
        dk_JK, dv_JK = carry
        queries = pl.ds(row * block, block)
        q_IK, do_IK = q_ref[repeat, queries, :], do_ref[repeat, queries, :]
        log_I1, delta_I1 = log_ref[repeat, queries, :], delta_ref[repeat, queries, :]
        weight_IJ = jnp.where(_seen(row, column, block, window, length), jnp.exp(_scores(q_IK, k_JK) - log_I1), 0.0)
        dv_JK += jnp.dot(weight_IJ.astype(do_IK.dtype).T, do_IK, preferred_element_type=jnp.float32)
        slope_IJ = weight_IJ * (jnp.dot(do_IK, v_JK.T, preferred_element_type=jnp.float32) - delta_I1)
        dk_JK += jnp.dot(slope_IJ.astype(q_IK.dtype).T, q_IK, preferred_element_type=jnp.float32)
        return dk_JK, dv_JK

    carry = (jnp.zeros(k_JK.shape, jnp.float32), jnp.zeros(k_JK.shape, jnp.float32))
    for repeat in range(repeats):
        carry = jax.lax.fori_loop(first, end, functools.partial(absorb, repeat=repeat), carry)
    dk_ref[...] = (carry[0] / math.sqrt(k_JK.shape[-1])).astype(dk_ref.dtype)
    dv_ref[...] = carry[1].astype(dv_ref.dtype)


def _pairs(length: int, window: int) -> int:
    """Scores that are not masked, of one head."""
    if window == EVERY:
        return length * length
    window = min(window, length)
    return window * (window + 1) // 2 + (length - window) * window


def _in_groups(x_BHLK: jax.Array, groups: int, block: int) -> jax.Array:
    """x_NRLK, padded to whole blocks."""
    batch, heads, length, features = x_BHLK.shape
    return padded(x_BHLK.reshape(batch * groups, heads // groups, length, features), 2, block)


def _in_heads(x_NRLK: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return x_NRLK[:, :, : shape[2]].reshape(shape)


def _specs(block: int, length: int, features: int, repeats: int) -> tuple[Any, Any, Any, Any]:
    """Operands of a kernel: a block of rows of one head, a number for each row, all keys, all queries."""
    return (
        pl.BlockSpec((None, None, block, features), lambda n, r, i: (n, r, i, 0)),
        pl.BlockSpec((None, None, block, 1), lambda n, r, i: (n, r, i, 0)),
        pl.BlockSpec((None, length, features), lambda n, r, i: (n, 0, 0)),
        pl.BlockSpec((None, repeats, length, features), lambda n, j: (n, 0, 0, 0)),
    )


def _block(length: int) -> int:
    return min(BLOCK, max(16, int(pl.next_power_of_2(length))))


def _forward(window: int, q_BHLK: jax.Array, k_BGMK: jax.Array, v_BGMK: jax.Array) -> tuple[jax.Array, Residuals]:
    block = _block(q_BHLK.shape[2])
    q_NRLK = _in_groups(q_BHLK, k_BGMK.shape[1], block)
    k_NMK, v_NMK = (_in_groups(x_BGMK, k_BGMK.shape[1], block)[:, 0] for x_BGMK in (k_BGMK, v_BGMK))
    count, repeats, length, features = q_NRLK.shape
    rows, numbers, keys, _ = _specs(block, length, features, repeats)
    pairs = _pairs(q_BHLK.shape[2], window) * count * repeats
    o_NRLK, log_NRL1 = launch(
        functools.partial(_forward_kernel, block=block, window=window, length=q_BHLK.shape[2]),
        (q_NRLK, k_NMK, v_NMK),
        name="flash_forward",
        grid=(count, repeats, length // block),
        in_specs=(rows, keys, keys),
        out_specs=(rows, numbers),
        out_shape=(
            jax.ShapeDtypeStruct(q_NRLK.shape, q_NRLK.dtype),
            jax.ShapeDtypeStruct((count, repeats, length, 1), jnp.float32),
        ),
        flops=2 * 2 * pairs * features,
        transcendentals=pairs,
    )
    return _in_heads(o_NRLK, q_BHLK.shape), (q_NRLK, k_NMK, v_NMK, o_NRLK, log_NRL1)


def _backward(window: int, saved: Residuals, do_BHLK: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    q_NRLK, k_NMK, v_NMK, o_NRLK, log_NRL1 = saved
    count, repeats, length, features = q_NRLK.shape
    (batch, heads, whole, _), groups = do_BHLK.shape, do_BHLK.shape[1] // repeats
    block = _block(whole)
    do_NRLK = _in_groups(do_BHLK, groups, block)
    delta_NRL1 = jnp.sum(do_NRLK.astype(jnp.float32) * o_NRLK.astype(jnp.float32), -1, keepdims=True)
    operands = (q_NRLK, k_NMK, v_NMK, do_NRLK, log_NRL1, delta_NRL1)
    rows, numbers, keys, queries = _specs(block, length, features, repeats)
    pairs = _pairs(whole, window) * batch * heads
    dq_NRLK = launch(
        functools.partial(_query_kernel, block=block, window=window, length=whole),
        operands,
        name="flash_backward_queries",
        grid=(count, repeats, length // block),
        in_specs=(rows, keys, keys, rows, numbers, numbers),
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(q_NRLK.shape, q_NRLK.dtype),
        flops=3 * 2 * pairs * features,
        transcendentals=pairs,
    )
    part = pl.BlockSpec((None, block, features), lambda n, j: (n, j, 0))
    every = pl.BlockSpec((None, repeats, length, 1), lambda n, j: (n, 0, 0, 0))
    shape = jax.ShapeDtypeStruct(k_NMK.shape, k_NMK.dtype)
    gradients = launch(
        functools.partial(_key_kernel, block=block, window=window, length=whole),
        operands,
        name="flash_backward_keys",
        grid=(count, length // block),
        in_specs=(queries, part, part, queries, every, every),
        out_specs=(part, part),
        out_shape=(shape, shape),
        flops=4 * 2 * pairs * features,
        transcendentals=pairs,
    )
    dk_BGMK, dv_BGMK = (x_NMK[:, :whole].reshape(batch, groups, whole, features) for x_NMK in gradients)
    return _in_heads(dq_NRLK, do_BHLK.shape), dk_BGMK, dv_BGMK


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient(window: int, q_BHLK: jax.Array, k_BGMK: jax.Array, v_BGMK: jax.Array) -> jax.Array:
    return _forward(window, q_BHLK, k_BGMK, v_BGMK)[0]


_with_gradient.defvjp(_forward, _backward)


def flash_attention(q_BHLK: jax.Array, k_BGMK: jax.Array, v_BGMK: jax.Array, window: int | None = None) -> jax.Array:
    """Causal attention with its gradient as three kernels: o_BHLK.

    ``window``: a query sees as many keys, itself the last; ``None``: all before it.
    """
    o_BHLK: jax.Array = _with_gradient(window or q_BHLK.shape[2], q_BHLK, k_BGMK, v_BGMK)
    return o_BHLK


def part(q_BHLK: jax.Array, k_BHLK: jax.Array, v_BHLK: jax.Array, causal: bool) -> tuple[jax.Array, jax.Array]:
    """Attention to some of the keys: o_BHLK, and the logarithm of each row's sum of weights, log_BHL in float32.

    ``causal``: these are the keys of the queries' own positions; else all of them are before the queries.
    """
    o_BHLK, saved = _forward(q_BHLK.shape[2] if causal else EVERY, q_BHLK, k_BHLK, v_BHLK)
    return o_BHLK, _in_heads(saved[-1][..., 0], q_BHLK.shape[:3])


def part_gradients(
    q_BHLK: jax.Array, k_BHLK: jax.Array, v_BHLK: jax.Array, o_BHLK: jax.Array, log_BHL: jax.Array,
    do_BHLK: jax.Array, causal: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """The gradients that these keys bring, where o_BHLK and log_BHL are those of all keys: dq, dk, dv (BHLK)."""
    groups, block = k_BHLK.shape[1], _block(q_BHLK.shape[2])
    q_NRLK, k_NRLK, v_NRLK, o_NRLK, log_NRL1 = (
        _in_groups(x_BHLK, groups, block) for x_BHLK in (q_BHLK, k_BHLK, v_BHLK, o_BHLK, log_BHL[..., None])
    )
    saved = q_NRLK, k_NRLK[:, 0], v_NRLK[:, 0], o_NRLK, log_NRL1
    return _backward(q_BHLK.shape[2] if causal else EVERY, saved, do_BHLK)
