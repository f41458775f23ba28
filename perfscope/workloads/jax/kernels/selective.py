"""A selective scan (Gu and Dao 2023) as Pallas kernels: states stay on chip from one position to the next.

Shapes: B batch, L sequence, D channels, N states of a channel, I channels of a block, S blocks of channels.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from perfscope.workloads.jax.kernels.launch import launch

CHANNELS = 16
"""I: channels of a block; few, because the arrays of all positions of a block are on chip on a TPU."""


def _forward_kernel(a_ref: Any, u_ref: Any, c_ref: Any, y_ref: Any, *saved: Any) -> None:
    """All positions of one block of channels: writes y_LI, and h_LIN for the backward."""

    def advance(place: jax.Array, h_IN: jax.Array) -> jax.Array:
        h_IN = a_ref[place] * h_IN + u_ref[place]
        y_ref[place] = (h_IN * c_ref[place]).sum(-1, keepdims=True)
        for h_ref in saved:
            h_ref[place] = h_IN
        return h_IN

    jax.lax.fori_loop(0, a_ref.shape[0], advance, jnp.zeros(a_ref.shape[1:], a_ref.dtype))


def _backward_kernel(a_ref: Any, c_ref: Any, h_ref: Any, dy_ref: Any, da_ref: Any, du_ref: Any, dc_ref: Any) -> None:
    """The positions in reverse: writes da_LIN, du_LIN and this block's part of dc_LN."""
    length = a_ref.shape[0]

    def advance(turn: jax.Array, carry_IN: jax.Array) -> jax.Array:
        place = length - 1 - turn
        dh_IN = dy_ref[place] * c_ref[place] + carry_IN
        before_IN = jnp.where(place > 0, h_ref[jnp.maximum(place - 1, 0)], 0.0)
        da_ref[place] = dh_IN * before_IN
        du_ref[place] = dh_IN
        dc_ref[place] = (dy_ref[place] * h_ref[place]).sum(0, keepdims=True)
        return dh_IN * a_ref[place]

    jax.lax.fori_loop(0, length, advance, jnp.zeros(a_ref.shape[1:], a_ref.dtype))


def _blocks(shape: tuple[int, ...]) -> tuple[int, Any, Any, Any]:
    """Channels of a block; and the part of it of an array of channels and states, of channels, and of states."""
    _, length, channels, states = shape
    block = min(CHANNELS, channels)
    return (
        block,
        pl.BlockSpec((None, length, block, states), lambda b, s: (b, 0, s, 0)),
        pl.BlockSpec((None, length, block, 1), lambda b, s: (b, 0, s, 0)),
        pl.BlockSpec((None, length, 1, states), lambda b, s: (b, 0, 0, 0)),
    )


def _scan(a_BLDN: jax.Array, u_BLDN: jax.Array, c_BLN: jax.Array, *, saves: bool) -> list[jax.Array]:
    """y_BLD1, and h_BLDN for the backward."""
    block, both, channels, states = _blocks(a_BLDN.shape)
    y_BLD1 = jax.ShapeDtypeStruct((*a_BLDN.shape[:3], 1), a_BLDN.dtype)
    h_BLDN = jax.ShapeDtypeStruct(a_BLDN.shape, a_BLDN.dtype)
    found: list[jax.Array] = launch(
        _forward_kernel,
        (a_BLDN, u_BLDN, c_BLN[:, :, None]),
        name="selective_scan",
        grid=(a_BLDN.shape[0], a_BLDN.shape[2] // block),
        in_specs=(both, both, states),
        out_specs=[channels, both] if saves else [channels],
        out_shape=[y_BLD1, h_BLDN] if saves else [y_BLD1],
        flops=4 * a_BLDN.size,
    )
    return found


@jax.custom_vjp
def selective_scan(a_BLDN: jax.Array, u_BLDN: jax.Array, c_BLN: jax.Array) -> jax.Array:
    """h[t] = a[t] * h[t-1] + u[t], read by c: y_BLD. ``CHANNELS`` must divide D, unless D is smaller."""
    return _scan(a_BLDN, u_BLDN, c_BLN, saves=False)[0][..., 0]


def _forward(a_BLDN: jax.Array, u_BLDN: jax.Array, c_BLN: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    y_BLD1, h_BLDN = _scan(a_BLDN, u_BLDN, c_BLN, saves=True)
    return y_BLD1[..., 0], (a_BLDN, c_BLN, h_BLDN)


def _backward(saved: tuple[jax.Array, ...], dy_BLD: jax.Array) -> tuple[jax.Array, ...]:
    a_BLDN, c_BLN, h_BLDN = saved
    block, both, channels, states = _blocks(a_BLDN.shape)
    batch, length, dim, count = a_BLDN.shape
    part = pl.BlockSpec((None, None, length, 1, count), lambda b, s: (b, s, 0, 0, 0))
    shape = jax.ShapeDtypeStruct(a_BLDN.shape, a_BLDN.dtype)
    da_BLDN, du_BLDN, dc_BSL1N = launch(
        _backward_kernel,
        (a_BLDN, c_BLN[:, :, None], h_BLDN, dy_BLD[..., None]),
        name="selective_scan_backward",
        grid=(batch, dim // block),
        in_specs=(both, states, both, channels),
        out_specs=[both, both, part],
        out_shape=[shape, shape, jax.ShapeDtypeStruct((batch, dim // block, length, 1, count), a_BLDN.dtype)],
        flops=6 * a_BLDN.size,
    )
    return da_BLDN, du_BLDN, dc_BSL1N.sum(1)[:, :, 0]


selective_scan.defvjp(_forward, _backward)
