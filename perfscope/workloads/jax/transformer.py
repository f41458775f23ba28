"""One step of the JAX transformer on many devices: data, fully sharded (FSDP) and tensor parallel, by flags.

Shapes: B batch, L sequence, D model features, and those of ``attention``; the weights of all layers have a leading
layer axis, which no device shares.

    python -m perfscope.workloads.jax.transformer --data 2 --fsdp 2 --tensor 2
    python -m perfscope.workloads.jax.transformer --data 8 --fsdp 1 --tensor 1 --defect sharding

On the CPU jax pretends to have ``--devices`` of them: by default as many as the mesh needs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from perfscope.workloads.jax import attention
from perfscope.workloads.jax.layers import Weights
from perfscope.workloads.jax.options import DEFECTS, options_of, parser_of
from perfscope.workloads.jax.training import LanguageModel, State, loop, start, step_of
from perfscope.workloads.options import Options, Size

VARIANTS = ("naive", "blocked")
SIZES = {
    "tiny": Size(batch=8, seq=32, dim=64, heads=4, layers=2, vocab=64),
    "cpu": Size(batch=8, seq=128, dim=128, heads=4, layers=2),
    "gpu": Size(batch=32, seq=1024, dim=2048, heads=16, layers=8, vocab=4096),
}
AXES = ("data", "fsdp", "tensor")
BATCH = ("data", "fsdp")
"""Mesh axes that share a batch: with FSDP every device that holds a part of the weights has its own sequences."""
SPECS = {
    "embedding_VD": PartitionSpec(None, "fsdp"),
    "head_DV": PartitionSpec("fsdp"),
    "qkv_DCHK": PartitionSpec(None, "fsdp", None, "tensor"),
    "out_HKD": PartitionSpec(None, "tensor", None, "fsdp"),
    "up_DF": PartitionSpec(None, "fsdp", "tensor"),
    "up_F": PartitionSpec(None, "tensor"),
    "down_FD": PartitionSpec(None, "tensor", "fsdp"),
}
"""Axes that divide each array of the weights: heads and hidden features by ``tensor`` (Shoeybi et al. 2019), the other
large axis by ``fsdp``. Arrays that are not named are small, and whole on every device."""


def mesh_of(shape: Sequence[int], kind: str) -> Mesh:
    """The mesh of ``AXES`` over the first devices of a kind (``cpu``, ``gpu``). ValueError if they are too few."""
    devices, needed = jax.devices(kind), int(np.prod(shape))
    if len(devices) < needed:
        raise ValueError(f"a mesh of {' x '.join(map(str, shape))} needs {needed} devices, jax has {len(devices)}")
    return Mesh(np.array(devices[:needed]).reshape(tuple(shape)), AXES)


def weight_shardings(mesh: Mesh, weights: Weights) -> Weights:
    """The sharding of every array of the weights: a tree like theirs."""

    def sharding(path: Any, _: Any) -> NamedSharding:
        return NamedSharding(mesh, SPECS.get(path[-1].key, PartitionSpec()))

    tree: Weights = jax.tree_util.tree_map_with_path(sharding, weights)
    return tree


def gathered(mesh: Mesh, weights: Weights, stacked: bool) -> Weights:
    """The weights with their ``fsdp`` parts brought together, just before use: the all-gathers that FSDP is made of.

    ``stacked``: the leading layer axis that the names in ``SPECS`` have is there; without it, these are one layer's.
    """
    whole = {}
    for name, array in weights.items():
        if name in SPECS and "fsdp" in SPECS[name]:
            spec = [None if axis == "fsdp" else axis for axis in SPECS[name]]
            sharding = NamedSharding(mesh, PartitionSpec(*(spec if stacked else spec[1:])))
            whole[name] = jax.lax.with_sharding_constraint(array, sharding)
        else:
            whole[name] = array
    return whole


class Block(attention.Block):
    """The block of ``attention`` on a mesh: x_BLD -> x_BLD, whole sequences on every device."""

    def __init__(self, size: Size, variant: str, mesh: Mesh, defects: frozenset[str]) -> None:
        super().__init__(size, variant)
        self.mesh, self.defects = mesh, defects

    def __call__(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """x_BLD."""
        by_sequence = NamedSharding(self.mesh, PartitionSpec(None, BATCH))
        by_batch = NamedSharding(self.mesh, PartitionSpec(BATCH))
        weights = gathered(self.mesh, weights, stacked=False)
        x_BLD = jax.lax.with_sharding_constraint(x_BLD, by_batch)
        x_BLD = checkpoint_name(x_BLD + self.attention(weights, x_BLD), "middle")
        x_BLD = jax.lax.with_sharding_constraint(x_BLD, by_batch)
        y_BLD = jax.lax.with_sharding_constraint(self.feed_forward(weights, x_BLD), by_batch)
        if "sharding" in self.defects:
            x_BLD = jax.lax.with_sharding_constraint(x_BLD + y_BLD, by_sequence)  # defect: resharding_collective
        else:
            x_BLD = x_BLD + y_BLD
        return jax.lax.with_sharding_constraint(x_BLD, by_batch)


class ShardedModel(LanguageModel):
    """The language model on a mesh."""

    def __init__(self, options: Options, mesh: Mesh) -> None:
        super().__init__(functools.partial(Block, mesh=mesh, defects=options.defects), options)
        self.mesh = mesh

    def __call__(self, weights: Weights, tokens_BL: jax.Array) -> jax.Array:
        """logits_BLV."""
        return super().__call__(gathered(self.mesh, weights, stacked=True), tokens_BL)


def sharded_step(options: Options, mesh: Mesh) -> tuple[Any, State, NamedSharding]:
    """The compiled step, the state before the first one, laid out on the mesh, and the sharding of a batch."""
    model = ShardedModel(options, mesh)
    state = start(model)
    weights = weight_shardings(mesh, state.weights)
    one, batch = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(BATCH))
    shardings = State(weights, weights, weights, one)
    update = jax.jit(
        step_of(model),
        in_shardings=(shardings, batch),
        out_shardings=(shardings, one),
        static_argnums=2,
        donate_argnums=() if "no-donation" in options.defects else 0,  # defect: donation_missed: two states
    )
    return update, jax.device_put(state, shardings), batch


def train(options: Options, shape: Sequence[int]) -> list[float]:
    """Trains on a mesh of ``shape`` (devices along each of ``AXES``), prints the losses and returns them."""
    update, state, batch = sharded_step(options, mesh_of(shape, options.device))
    return loop(update, state, options, batch)


def parse(argv: Sequence[str] | None = None) -> tuple[Options, tuple[int, ...], int]:
    """Options, the shape of the mesh, and how many CPU devices to have."""
    defects = DEFECTS | {"sharding": "cut the activations along the sequence, where attention needs whole sequences"}
    parser = parser_of(__doc__ or "", VARIANTS, SIZES, defects)
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=int, default=2, help="devices along this axis of the mesh")
    parser.add_argument("--devices", type=int, help="devices that the CPU is to look like")
    arguments = parser.parse_args(argv)
    shape = tuple(getattr(arguments, axis) for axis in AXES)
    return options_of(arguments, SIZES), shape, arguments.devices or int(np.prod(shape))


def main() -> None:
    """Asks jax for the devices, before it looks for them, and trains."""
    options, shape, devices = parse()
    if options.device == "cpu":
        jax.config.update("jax_num_cpu_devices", devices)
    train(options, shape)


if __name__ == "__main__":
    main()
