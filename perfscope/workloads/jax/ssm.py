"""A selective state space model in JAX. Variants of its recurrence: ``scan`` over time, ``associative`` in log2(L).

Shapes: B batch, L sequence, D channels, N states of a channel, G = D * N.

    python -m perfscope.workloads.jax.ssm --variant scan
    python -m perfscope.workloads.jax.ssm --variant associative --size gpu

Both compute h[t] = a[t] * h[t-1] + u[t]: in L tiny steps, or by ``lax.associative_scan`` in log2(L) large ones
(Blelloch 1990); ``kernel`` is a Pallas kernel that keeps h on chip. ``--heads`` is the number of states.

``ssd-scan``, ``ssd-chunked`` and ``ssd`` are another layer (Mamba-2, one decay per head): in L steps, in chunks of
matrix products, and as one Pallas kernel.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax import ssd
from perfscope.workloads.jax.layers import Weights, layer_norm, norm_weights, uniform
from perfscope.workloads.jax.options import parse
from perfscope.workloads.jax.training import train
from perfscope.workloads.options import Size

VARIANTS = ("scan", "associative", "kernel", "ssd-scan", "ssd-chunked", "ssd")
"""Variants whose name begins with ``ssd`` are a different layer."""


def scan(a_BLDN: jax.Array, u_BLDN: jax.Array) -> jax.Array:
    """Steps of time, one after the other: h_BLDN."""

    def advance(h_BDN: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a_BDN, u_BDN = now
        h_BDN = a_BDN * h_BDN + u_BDN
        return h_BDN, h_BDN

    inputs = jnp.moveaxis(a_BLDN, 1, 0), jnp.moveaxis(u_BLDN, 1, 0)
    _, h_LBDN = jax.lax.scan(advance, jnp.zeros_like(u_BLDN[:, 0]), inputs)  # defect: sequential_scan
    return jnp.moveaxis(h_LBDN, 0, 1)


SIZES = {
    "tiny": Size(batch=4, seq=96, dim=16, heads=4, layers=1, vocab=64),
    "cpu": Size(batch=4, seq=256, dim=32, heads=8, layers=2),
    "gpu": Size(batch=8, seq=512, dim=1024, heads=16, layers=2, vocab=4096),
}


def associative(a_BLDN: jax.Array, u_BLDN: jax.Array) -> jax.Array:
    """All of time at once: h_BLDN."""
    _, h_BLDN = jax.lax.associative_scan(_compose, (a_BLDN, u_BLDN), axis=1)
    return h_BLDN


def _compose(early: tuple[jax.Array, jax.Array], late: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The steps h -> a * h + u of two adjacent stretches of time, as one."""
    return early[0] * late[0], late[0] * early[1] + late[1]


def kernel(a_BLDN: jax.Array, u_BLDN: jax.Array, c_BLN: jax.Array) -> jax.Array:
    """All of time in one kernel, which reads the states with c: y_BLD."""
    # Loaded here: the other variants run where Pallas does not load (jax 0.6 without absl-py).
    from perfscope.workloads.jax.kernels.selective import selective_scan

    return selective_scan(a_BLDN, u_BLDN, c_BLN)


RECURRENCE = {"scan": scan, "associative": associative}


class Block:
    """Pre-norm block whose states decay depending on the input (selective): x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        self.size, self.variant = size, variant

    def initial(self, generator: np.random.Generator) -> Weights:
        """The weights of one layer, float32."""
        dim, states = self.size.dim, self.size.heads
        if self.variant.startswith("ssd"):
            return {"norm": norm_weights(dim), **ssd.initial(generator, self.size)}
        return {
            "norm": norm_weights(dim),
            "decay_DG": uniform(generator, dim, dim, dim * states),
            "decay_G": uniform(generator, dim, dim * states),
            "write_DG": uniform(generator, dim, dim, dim * states),
            "write_G": uniform(generator, dim, dim * states),
            "read_DN": uniform(generator, dim, dim, states),
            "read_N": uniform(generator, dim, states),
            "out_DD": uniform(generator, dim, dim, dim),
            "out_D": uniform(generator, dim, dim),
        }

    def __call__(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """x_BLD."""
        z_BLD = layer_norm(weights["norm"], x_BLD)
        if self.variant.startswith("ssd"):
            return x_BLD + ssd.mixed(weights, z_BLD, self.variant)
        shape_BLDN = (*x_BLD.shape, self.size.heads)
        with jax.named_scope("inputs"):
            a_BLDN = jax.nn.sigmoid(z_BLD @ weights["decay_DG"] + weights["decay_G"]).reshape(shape_BLDN)
            u_BLDN = (z_BLD @ weights["write_DG"] + weights["write_G"]).reshape(shape_BLDN)
            c_BLN = z_BLD @ weights["read_DN"] + weights["read_N"]
        with jax.named_scope("recurrence"):
            if self.variant == "kernel":
                y_BLD = kernel(a_BLDN, u_BLDN, c_BLN)
            else:
                y_BLD = jnp.einsum("bldn,bln->bld", RECURRENCE[self.variant](a_BLDN, u_BLDN), c_BLN)
        with jax.named_scope("output"):
            return x_BLD + y_BLD @ weights["out_DD"] + weights["out_D"]


if __name__ == "__main__":
    train(Block, parse(__doc__ or "", VARIANTS, SIZES))
