"""Attention over sequences that are cut among devices (context parallel), in JAX.

    python -m perfscope.workloads.jax.context --variant ring
    python -m perfscope.workloads.jax.context --variant gathered --devices 8
    python -m perfscope.workloads.jax.context --variant ring-flash

``gathered`` brings all keys and values to every device and has its scores to all of them in memory; ``ring`` (Liu et
al. 2023) sends each part around, and computes on one part while the next one arrives; ``ring-flash`` does so in kernels
that keep the scores of a part on chip. All compute the same. On the CPU jax pretends to have ``--devices`` of them.

Shapes: B batch, L query positions of a device, M key positions of a device, H heads, K features of a head.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from perfscope.workloads.jax import attention
from perfscope.workloads.jax.layers import Weights
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.jax.training import LanguageModel, loop, start, step_of
from perfscope.workloads.options import Options, Size

VARIANTS = ("gathered", "ring", "ring-flash")
SIZES = {
    "tiny": Size(batch=2, seq=64, dim=64, heads=2, layers=1, vocab=64),
    "cpu": Size(batch=2, seq=512, dim=128, heads=4, layers=2),
    "gpu": Size(batch=2, seq=16_384, dim=2048, heads=16, layers=4, vocab=4096),
}
AXIS = "context"
Carry = tuple[jax.Array, ...]


def absorb(carry: Carry, q_BHLK: jax.Array, kv_2BHMK: jax.Array, first: Any, first_key: Any) -> Carry:
    """Online softmax: take one part of the keys into account. ``first``, ``first_key``: positions of their parts."""
    top_BHL, sum_BHL, o_BHLK = carry
    scores_BHLM = jnp.matmul(q_BHLK, kv_2BHMK[0].mT, preferred_element_type=jnp.float32) / math.sqrt(q_BHLK.shape[-1])
    place_L, place_M = first + jnp.arange(q_BHLK.shape[2]), first_key + jnp.arange(kv_2BHMK.shape[3])
    scores_BHLM = jnp.where(place_L[:, None] >= place_M, scores_BHLM, -jnp.inf)
    new_BHL = jnp.maximum(top_BHL, scores_BHLM.max(-1))
    weight_BHLM = jnp.exp(scores_BHLM - new_BHL[..., None])
    shrink_BHL = jnp.exp(top_BHL - new_BHL)
    o_BHLK = o_BHLK * shrink_BHL[..., None]
    o_BHLK += jnp.matmul(weight_BHLM.astype(q_BHLK.dtype), kv_2BHMK[1], preferred_element_type=jnp.float32)
    return new_BHL, sum_BHL * shrink_BHL + weight_BHLM.sum(-1), o_BHLK


def ring_attention(devices: int, q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array) -> jax.Array:
    """Causal attention of one device's queries; keys and values pass by, its own first: o_BHLK."""
    mine, length = jax.lax.axis_index(AXIS), q_BHLK.shape[2]
    onward = [(device, (device + 1) % devices) for device in range(devices)]

    # Without checkpoint the backward would keep the scores of every part.
    @jax.checkpoint
    def turn(carry: tuple[Carry, jax.Array], number: jax.Array) -> tuple[tuple[Carry, jax.Array], None]:
        sums, kv_2BHMK = carry
        following_2BHMK = jax.lax.ppermute(kv_2BHMK, AXIS, onward)  # on its way while this part is absorbed
        origin = (mine - number) % devices
        return (absorb(sums, q_BHLK, kv_2BHMK, mine * length, origin * length), following_2BHMK), None

    start_BHL = jax.lax.pcast(jnp.full(q_BHLK.shape[:3], -jnp.inf, jnp.float32), AXIS, to="varying")
    sums = start_BHL, jnp.zeros_like(start_BHL), jnp.zeros_like(q_BHLK, jnp.float32)
    (sums, _), _ = jax.lax.scan(turn, (sums, jnp.stack((k_BHMK, v_BHMK))), jnp.arange(devices))
    return (sums[2] / sums[1][..., None]).astype(q_BHLK.dtype)


def gathered_attention(devices: int, q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array) -> jax.Array:
    """Causal attention of one device's queries to the keys and values of all devices: o_BHLK."""
    length = q_BHLK.shape[2]
    k_BHMK, v_BHMK = jax.lax.all_gather(jnp.stack((k_BHMK, v_BHMK)), AXIS, axis=3, tiled=True)
    place_L = jax.lax.axis_index(AXIS) * length + jnp.arange(length)
    scores_BHLM = q_BHLK @ k_BHMK.mT / math.sqrt(q_BHLK.shape[-1])  # defect: unfused_attention: to all keys
    past_LM = place_L[:, None] >= jnp.arange(devices * length)
    scores_BHLM = jnp.where(past_LM, scores_BHLM.astype(jnp.float32), -jnp.inf)
    return jax.nn.softmax(scores_BHLM).astype(q_BHLK.dtype) @ v_BHMK


def flash_ring_attention(devices: int, q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array) -> jax.Array:
    """``ring_attention`` whose scores stay on chip: o_BHLK."""
    # Loaded here: the other variants run where Pallas does not load (jax 0.6 without absl-py).
    from perfscope.workloads.jax.kernels.ring import ring_attention

    o_BHLK: jax.Array = ring_attention(AXIS, devices, q_BHLK, k_BHMK, v_BHMK)
    return o_BHLK


ATTENTION = {"gathered": gathered_attention, "ring": ring_attention, "ring-flash": flash_ring_attention}


class Block(attention.Block):
    """The block of ``attention``, whose sequences are cut among the devices of a mesh: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str, mesh: Mesh) -> None:
        super().__init__(size, "naive")
        spec = PartitionSpec(None, None, AXIS)
        attend = functools.partial(ATTENTION[variant], mesh.size)
        # Results of kernels carry no mark that they differ between devices.
        checked = variant != "ring-flash"
        self.attend = jax.shard_map(attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=checked)


class CutModel(LanguageModel):
    """The language model on sequences that are cut among devices."""

    def __init__(self, options: Options, mesh: Mesh) -> None:
        super().__init__(functools.partial(Block, mesh=mesh), options)
        self.place = NamedSharding(mesh, PartitionSpec(None, AXIS))

    def __call__(self, weights: Weights, tokens_BL: jax.Array) -> jax.Array:
        """logits_BLV."""
        return super().__call__(weights, jax.lax.with_sharding_constraint(tokens_BL, self.place))


def train(options: Options, devices: int) -> list[float]:
    """Trains on a ring of devices, prints the losses and returns them.

    ValueError if the devices do not divide the sequence.
    """
    if options.size.seq % devices:
        raise ValueError(f"sequences of {options.size.seq} positions cannot be cut among {devices} devices")
    kind = options.device.partition(":")[0]
    mesh = Mesh(np.array(jax.devices(kind)[:devices]), (AXIS,))
    model, whole = CutModel(options, mesh), NamedSharding(mesh, PartitionSpec())
    update = jax.jit(
        step_of(model), in_shardings=(whole, whole), out_shardings=whole, static_argnums=2, donate_argnums=0
    )
    return loop(update, jax.device_put(start(model), whole), options, whole)


def parse(argv: Sequence[str] | None = None) -> tuple[Options, int]:
    """Options, and the number of devices."""
    parser = parser_of(__doc__ or "", VARIANTS, SIZES, {})
    parser.add_argument("--devices", type=int, default=8, help="devices that share a sequence")
    arguments = parser.parse_args(argv)
    return options_of(arguments, SIZES), arguments.devices


def main() -> None:
    """Asks jax for the devices, before it looks for them, and trains."""
    options, devices = parse()
    if options.device == "cpu":
        jax.config.update("jax_num_cpu_devices", devices)
    train(options, devices)


if __name__ == "__main__":
    main()
