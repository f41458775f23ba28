"""A mixture of experts on many devices: experts divided among them, tokens sent there and back by all-to-alls.

Shapes: those of ``moe``; on a device T is its tokens, E all experts, X the experts that it holds, C the room that it
fills for one expert.

    python -m perfscope.workloads.jax.experts --data 2 --expert 4
    python -m perfscope.workloads.jax.experts --data 1 --fsdp 2 --expert 4 --skew 4

Every axis of the mesh divides the batch; ``expert`` divides the experts, and ``fsdp`` all large weights, which are
gathered before their use. The room is fixed, so skewed routing costs no time here: tokens beyond ``--capacity`` times
the fair share of an expert are dropped. On the CPU jax pretends to have as many devices as the mesh needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from perfscope.workloads.jax import moe
from perfscope.workloads.jax.layers import Weights, layer_norm
from perfscope.workloads.jax.options import DEFECTS, options_of, parser_of
from perfscope.workloads.jax.training import LanguageModel, State, loop, start, step_of
from perfscope.workloads.options import Options, Size

VARIANTS = ("room",)
SIZES = {
    "tiny": Size(batch=8, seq=16, dim=32, heads=8, layers=2, vocab=64),
    "cpu": Size(batch=8, seq=128, dim=128, heads=8, layers=2),
    "gpu": Size(batch=32, seq=1024, dim=1024, heads=16, layers=4, vocab=4096),
}
AXES = ("data", "fsdp", "expert")
SPECS = {
    "embedding_VD": PartitionSpec(None, "fsdp"),
    "head_DV": PartitionSpec("fsdp"),
    "up_EDG": PartitionSpec(None, "expert", "fsdp"),
    "down_EFD": PartitionSpec(None, "expert", None, "fsdp"),
}
"""Axes that divide each array of the weights, with the leading axis of the layers. Others are whole on every device."""


class Block:
    """The block of ``moe`` on a mesh: x_BLD -> x_BLD, whole sequences on every device."""

    def __init__(self, size: Size, variant: str, mesh: Mesh, skew: float, capacity: float) -> None:
        self.size, self.mesh, self.skew, self.capacity = size, mesh, skew, capacity
        self.initial = moe.Block(size, "scatter").initial

    def __call__(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """x_BLD."""
        weights = _gathered(self.mesh, weights, stacked=False)
        whole, by_expert, by_batch = PartitionSpec(), PartitionSpec("expert"), PartitionSpec(AXES)
        specs = {
            **jax.tree.map(lambda _: whole, weights),
            "experts": jax.tree.map(lambda _: by_expert, weights["experts"]),
        }
        local = jax.shard_map(self._local, mesh=self.mesh, in_specs=(specs, by_batch), out_specs=by_batch)
        result: jax.Array = local(weights, x_BLD)
        return result

    def _local(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """The block on the sequences of one device: x_BLD."""
        x_TD = layer_norm(weights["norm"], x_BLD).reshape(-1, self.size.dim)
        with jax.named_scope("router"):
            bias_E = self.skew * jnp.linspace(1, 0, self.size.heads, dtype=x_TD.dtype)  # --skew: to the first experts
            logit_TK, expert_TK = jax.lax.top_k(x_TD @ weights["router_DE"] + bias_E, moe.CHOICES)
            weight_TK = jax.nn.softmax(logit_TK.astype(jnp.float32)).astype(x_TD.dtype)
        capacity = -(-int(self.capacity * expert_TK.size) // self.size.heads)
        exchange = partial(jax.lax.all_to_all, axis_name="expert", tiled=True)
        with jax.named_scope("dispatch"):
            room_ECD, slot_R = moe.into_room(x_TD, expert_TK, self.size.heads, capacity)
            x_XCD = exchange(room_ECD, split_axis=0, concat_axis=1)  # C: of all devices along the axis
        with jax.named_scope("experts"):
            y_XCD = moe.computed(weights["experts"], x_XCD)
        with jax.named_scope("combine"):
            y_ECD = exchange(y_XCD, split_axis=1, concat_axis=0)
            return x_BLD + moe.out_of_room(y_ECD, slot_R, weight_TK).reshape(x_BLD.shape)


def _gathered(mesh: Mesh, weights: Weights, stacked: bool) -> Weights:
    """The weights without their division along ``fsdp``: the all-gathers before their use."""

    def whole(path: Any, array: jax.Array) -> jax.Array:
        spec = SPECS.get(path[-1].key)
        if spec is None:
            return array
        axes = [None if axis == "fsdp" else axis for axis in spec]
        kept = PartitionSpec(*(axes if stacked or array.ndim < 3 else axes[1:]))
        return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, kept))

    tree: Weights = jax.tree_util.tree_map_with_path(whole, weights)
    return tree


class ShardedModel(LanguageModel):
    """The language model on a mesh."""

    def __init__(self, options: Options, mesh: Mesh, skew: float, capacity: float) -> None:
        super().__init__(partial(Block, mesh=mesh, skew=skew, capacity=capacity), options)
        self.mesh = mesh

    def __call__(self, weights: Weights, tokens_BL: jax.Array) -> jax.Array:
        """logits_BLV."""
        outer = {name: array for name, array in weights.items() if name != "blocks"}
        return super().__call__({**_gathered(self.mesh, outer, stacked=True), "blocks": weights["blocks"]}, tokens_BL)


def sharded_step(
    options: Options, mesh: Mesh, skew: float = 0.0, capacity: float = moe.CAPACITY
) -> tuple[Any, State, NamedSharding]:
    """The jitted step, the state before the first one, laid out on the mesh, and the sharding of a batch."""
    model = ShardedModel(options, mesh, skew, capacity)
    state = start(model)

    def sharding(path: Any, _: Any) -> NamedSharding:
        return NamedSharding(mesh, SPECS.get(path[-1].key, PartitionSpec()))

    weights = jax.tree_util.tree_map_with_path(sharding, state.weights)
    one, batch = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXES))
    shardings = State(weights, weights, weights, one)
    update = jax.jit(step_of(model), in_shardings=(shardings, batch), out_shardings=(shardings, one), donate_argnums=0)
    return update, jax.device_put(state, shardings), batch


def mesh_of(shape: Sequence[int], kind: str) -> Mesh:
    """The mesh of ``AXES`` over the first devices of a kind (``cpu``, ``gpu``). ValueError if they are too few."""
    devices, needed = jax.devices(kind), int(np.prod(shape))
    if len(devices) < needed:
        raise ValueError(f"a mesh of {' x '.join(map(str, shape))} needs {needed} devices, jax has {len(devices)}")
    return Mesh(np.array(devices[:needed]).reshape(tuple(shape)), AXES)


def parse(argv: Sequence[str] | None = None) -> tuple[Options, argparse.Namespace]:
    """Options, and the flags of the mesh and of the router."""
    defects = {name: DEFECTS[name] for name in ("float", "checkpoint")}
    parser = parser_of(__doc__ or "", VARIANTS, SIZES, defects)
    for axis, size in zip(AXES, (2, 1, 4), strict=True):
        parser.add_argument(f"--{axis}", type=int, default=size, help="devices along this axis of the mesh")
    parser.add_argument("--skew", type=float, default=0.0, help="added to the router's logit of the first expert")
    parser.add_argument("--capacity", type=float, default=moe.CAPACITY, help="room of an expert over its fair share")
    arguments = parser.parse_args(argv)
    return options_of(arguments, SIZES), arguments


def main() -> None:
    """Asks jax for the devices, before it looks for them, and trains."""
    options, flags = parse()
    shape = tuple(getattr(flags, axis) for axis in AXES)
    if options.device == "cpu":
        jax.config.update("jax_num_cpu_devices", int(np.prod(shape)))
    update, state, batch = sharded_step(options, mesh_of(shape, options.device), flags.skew, flags.capacity)
    loop(update, state, options, batch)


if __name__ == "__main__":
    main()
