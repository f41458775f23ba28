"""Mixing of positions by a state space with one decay per head (Mamba-2), written as a scan over time.

Shapes: B batch, L sequence, D channels, H heads, P features of a head, N states.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax.layers import Weights, uniform
from perfscope.workloads.options import Size

FEATURES = 64
"""P: features of a head; half of the channels, if there are fewer than twice as many."""


def initial(generator: np.random.Generator, size: Size) -> Weights:
    """The weights of one layer, float32."""
    dim, states, features = size.dim, size.heads, min(FEATURES, size.dim // 2)
    return {
        "x_DHP": uniform(generator, dim, dim, dim // features, features),
        "decay_DH": uniform(generator, dim, dim, dim // features),
        "decay_H": uniform(generator, dim, dim // features),
        "write_DN": uniform(generator, dim, dim, states),
        "read_DN": uniform(generator, dim, dim, states),
        "out_HPD": uniform(generator, dim, dim // features, features, dim),
    }


def inputs(weights: Weights, z_BLD: jax.Array) -> tuple[jax.Array, ...]:
    """x_BLHP, the logarithms log_BLH of the decays in float32, b_BLN that writes states and c_BLN that reads them."""
    x_BLHP = jnp.einsum("bld,dhp->blhp", z_BLD, weights["x_DHP"])
    log_BLH = jax.nn.log_sigmoid((z_BLD @ weights["decay_DH"] + weights["decay_H"]).astype(jnp.float32))
    return x_BLHP, log_BLH, z_BLD @ weights["write_DN"], z_BLD @ weights["read_DN"]


def scan(x_BLHP: jax.Array, log_BLH: jax.Array, b_BLN: jax.Array, c_BLN: jax.Array) -> jax.Array:
    """Steps of time, one after the other: y_BLHP."""

    def advance(state_BHNP: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x_BHP, log_BH, b_BN, c_BN = now
        new_BHNP = b_BN[:, None, :, None] * x_BHP[:, :, None]
        state_BHNP = jnp.exp(log_BH)[..., None, None] * state_BHNP + new_BHNP
        return state_BHNP, jnp.einsum("bn,bhnp->bhp", c_BN, state_BHNP).astype(x_BHP.dtype)

    batch, _, heads, features = x_BLHP.shape
    start_BHNP = jnp.zeros((batch, heads, b_BLN.shape[-1], features), jnp.float32)
    by_time = tuple(jnp.moveaxis(array, 1, 0) for array in (x_BLHP, log_BLH, b_BLN, c_BLN))
    _, y_LBHP = jax.lax.scan(advance, start_BHNP, by_time)  # defect: sequential_scan: one decay per head
    return jnp.moveaxis(y_LBHP, 0, 1)


def mixed(weights: Weights, z_BLD: jax.Array, variant: str) -> jax.Array:
    """The term that the layer adds: y_BLD."""
    with jax.named_scope("inputs"):
        given = inputs(weights, z_BLD)
    with jax.named_scope("recurrence"):
        if variant == "ssd-scan":
            y_BLHP = scan(*given)
        else:
            # Loaded here: the other variants run where Pallas does not load.
            from perfscope.workloads.jax.kernels import ssd

            y_BLHP = ssd.chunked(*given) if variant == "ssd-chunked" else ssd.ssd(*given)
    with jax.named_scope("output"):
        return jnp.einsum("blhp,hpd->bld", y_BLHP, weights["out_HPD"])
