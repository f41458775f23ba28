"""Ring attention (Liu et al. 2023) of flash kernels: parts are merged by the logarithms of their weights' sums.

For the body of a `jax.shard_map` whose devices have a part of each sequence, in order. The backward sends keys and
values around again, and their gradients with them.

Shapes: B batch, H heads, L positions of a device, K features of a head.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from perfscope.workloads.jax.kernels.flash import part, part_gradients

Arrays = tuple[jax.Array, ...]


def _onward(arrays: Any, axis: str, devices: int) -> Any:
    """The arrays of the previous device; those of this one go to the next."""
    pairs = [(device, (device + 1) % devices) for device in range(devices)]
    return jax.lax.ppermute(arrays, axis, pairs)


def _merged(o_BHLK: jax.Array, log_BHL: jax.Array, found: Arrays) -> Arrays:
    """Attention to the keys of both parts."""
    whole_BHL = jnp.logaddexp(log_BHL, found[1])
    shares = (jnp.exp(one_BHL - whole_BHL)[..., None] for one_BHL in (log_BHL, found[1]))
    return sum(o * share for o, share in zip((o_BHLK, found[0]), shares, strict=True)), whole_BHL


def _forward(
    axis: str, devices: int, q_BHLK: jax.Array, k_BHLK: jax.Array, v_BHLK: jax.Array
) -> tuple[jax.Array, Arrays]:
    mine, kv = jax.lax.axis_index(axis), (k_BHLK, v_BHLK)
    o_BHLK, log_BHL = part(q_BHLK, *kv, causal=True)

    def turn(carry: tuple[Arrays, Arrays], number: jax.Array) -> tuple[tuple[Arrays, Arrays], None]:
        (o_BHLK, log_BHL), kv = carry
        following = _onward(kv, axis, devices)  # on its way while this part is computed
        # Parts from later devices are after all queries of this one.
        before = number <= mine
        sums = jax.lax.cond(
            before,
            lambda: _merged(o_BHLK, log_BHL, part(q_BHLK, kv[0], kv[1], causal=False)),
            lambda: (o_BHLK, log_BHL),
        )
        return (sums, following), None

    carry = (o_BHLK.astype(jnp.float32), log_BHL), _onward(kv, axis, devices)
    ((o_BHLK, log_BHL), _), _ = jax.lax.scan(turn, carry, jnp.arange(1, devices))
    o_BHLK = o_BHLK.astype(q_BHLK.dtype)
    return o_BHLK, (q_BHLK, k_BHLK, v_BHLK, o_BHLK, log_BHL)


def _backward(axis: str, devices: int, saved: Arrays, do_BHLK: jax.Array) -> Arrays:
    q_BHLK, k_BHLK, v_BHLK, o_BHLK, log_BHL = saved
    mine = jax.lax.axis_index(axis)

    def slopes(k_BHLK: jax.Array, v_BHLK: jax.Array, causal: bool) -> Arrays:
        found = part_gradients(q_BHLK, k_BHLK, v_BHLK, o_BHLK, log_BHL, do_BHLK, causal)
        return tuple(slope_BHLK.astype(jnp.float32) for slope_BHLK in found)

    def turn(carry: tuple[Any, ...], number: jax.Array) -> tuple[tuple[Any, ...], None]:
        dq_BHLK, kv, dkv = carry
        following = _onward(kv, axis, devices)
        dkv = _onward(dkv, axis, devices)
        none = (jnp.zeros_like(dq_BHLK),) * 3
        dq, *more = jax.lax.cond(number <= mine, lambda: slopes(kv[0], kv[1], causal=False), lambda: none)
        return (dq_BHLK + dq, following, tuple(map(jnp.add, dkv, more))), None

    dq_BHLK, *dkv = slopes(k_BHLK, v_BHLK, causal=True)
    carry = dq_BHLK, _onward((k_BHLK, v_BHLK), axis, devices), tuple(dkv)
    (dq_BHLK, _, dkv), _ = jax.lax.scan(turn, carry, jnp.arange(1, devices))
    gradients = dq_BHLK, *_onward(dkv, axis, devices)  # back where the keys belong
    return tuple(slope_BHLK.astype(q_BHLK.dtype) for slope_BHLK in gradients)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def ring_attention(axis: str, devices: int, q_BHLK: jax.Array, k_BHLK: jax.Array, v_BHLK: jax.Array) -> jax.Array:
    """Causal attention of one device's queries to the keys and values of all ``devices`` along ``axis``: o_BHLK."""
    return _forward(axis, devices, q_BHLK, k_BHLK, v_BHLK)[0]


ring_attention.defvjp(_forward, _backward)
