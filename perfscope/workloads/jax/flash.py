"""Causal attention as one Pallas kernel, which keeps the scores on chip (Dao et al. 2022), forward only.

Shapes: B batch, H heads, N = B * H, L query position, M key position, K features of a head,
I queries of a block, J keys of a block.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from perfscope.workloads.jax.online import BLOCK, blocked_attention

GPU_PARAMETERS: Any = getattr(triton, "CompilerParams", None) or triton.TritonCompilerParams  # its name in jax 0.6


def _kernel(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any, *, block: int) -> None:
    """One block of queries against the keys that it sees: writes o_IK."""
    row = pl.program_id(1)
    q_IK = q_ref[...]
    place_I = row * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 0)

    def absorb(column: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top_I, sum_I, o_IK = carry
        keys = pl.ds(column * block, block)
        scores_IJ = jnp.dot(q_IK, k_ref[keys, :].T, preferred_element_type=jnp.float32) / math.sqrt(q_IK.shape[-1])
        place_J = column * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 1)
        scores_IJ = jnp.where(place_I >= place_J, scores_IJ, -jnp.inf)
        new_I = jnp.maximum(top_I, scores_IJ.max(-1))
        weight_IJ = jnp.exp(scores_IJ - new_I[:, None])
        shrink_I = jnp.exp(top_I - new_I)
        o_JK = jnp.dot(weight_IJ.astype(v_ref.dtype), v_ref[keys, :], preferred_element_type=jnp.float32)
        return new_I, sum_I * shrink_I + weight_IJ.sum(-1), o_IK * shrink_I[:, None] + o_JK

    start = (
        jnp.full((block,), -jnp.inf, jnp.float32),
        jnp.zeros((block,), jnp.float32),
        jnp.zeros(q_IK.shape, jnp.float32),
    )
    _, sum_I, o_IK = jax.lax.fori_loop(0, row + 1, absorb, start)
    o_ref[...] = (o_IK / sum_I[:, None]).astype(o_ref.dtype)


def _forward(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array) -> jax.Array:
    batch, heads, length, features = q_BHLK.shape
    block = min(BLOCK, pl.next_power_of_2(length))
    padded = length + -length % block
    flat = [
        jnp.pad(x_BHMK.reshape(-1, length, features), ((0, 0), (0, padded - length), (0, 0)))
        for x_BHMK in (q_BHLK, k_BHMK, v_BHMK)
    ]
    rows = pl.BlockSpec((None, block, features), lambda n, i: (n, i, 0))
    whole = pl.BlockSpec((None, padded, features), lambda n, i: (n, 0, 0))
    call = functools.partial(
        pl.pallas_call,
        functools.partial(_kernel, block=block),
        grid=(batch * heads, padded // block),
        in_specs=[rows, whole, whole],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(flat[0].shape, q_BHLK.dtype),
        name="flash_forward",
    )
    on_gpu = call(compiler_params=GPU_PARAMETERS(num_warps=4, num_stages=2))
    o_NLK = jax.lax.platform_dependent(*flat, cpu=call(interpret=True), cuda=on_gpu, rocm=on_gpu, default=call())
    return o_NLK[:, :length].reshape(q_BHLK.shape)


def _forward_and_inputs(*qkv: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _forward(*qkv), qkv


def _backward(qkv: tuple[jax.Array, ...], do_BHLK: jax.Array) -> tuple[jax.Array, ...]:
    _, gradients_of = jax.vjp(blocked_attention, *qkv)
    gradients: tuple[jax.Array, ...] = gradients_of(do_BHLK)
    return gradients


_with_gradient = jax.custom_vjp(_forward)
_with_gradient.defvjp(_forward_and_inputs, _backward)


def flash_attention(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array) -> jax.Array:
    """The kernel, interpreted on the CPU; its gradient is that of ``blocked_attention``: o_BHLK."""
    o_BHLK: jax.Array = _with_gradient(q_BHLK, k_BHMK, v_BHMK)
    return o_BHLK
