"""Run as a program, with a folder: trains on eight CPU devices, writes each compiled step there and prints losses.

``python -m tests.workloads.jax.eight_devices FOLDER``; the number of devices is fixed when jax starts, so this cannot
be done in the process of the other tests.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax

from perfscope.workloads.jax import attention, context, experts, moe, training, transformer
from perfscope.workloads.jax.data import batches
from perfscope.workloads.jax.training import loop
from perfscope.workloads.options import Options

MESHES = {
    "one": ((1, 1, 1), "naive", ""),
    "data": ((8, 1, 1), "naive", ""),
    "fsdp": ((1, 8, 1), "naive", ""),
    "tensor": ((1, 1, 4), "naive", ""),
    "all": ((2, 2, 2), "blocked", ""),
    "defect": ((2, 2, 2), "blocked", "sharding"),
}
"""Name -> devices along data, fsdp and tensor; variant; defect."""

EXPERTS = {"experts": (1, 1, 8), "experts and all": (2, 2, 2)}
"""Name -> devices along data, fsdp and expert."""

ROOM = 4.0
"""Capacity with which no token is dropped: all of a device's tokens fit into any of the eight experts' room."""


def main(folder: Path) -> dict[str, list[float]]:
    """The losses of two steps on each mesh; ``folder/NAME.hlo.txt`` is the step as compiled."""
    losses = {}
    for name, (shape, variant, defect) in MESHES.items():
        options = Options(
            variant=variant, size=transformer.SIZES["tiny"], steps=2, defects=frozenset({defect} if defect else ())
        )
        update, state, batch = transformer.sharded_step(options, transformer.mesh_of(shape, "cpu"))
        tokens_BM = jax.device_put(next(batches(options)), batch)
        (folder / f"{name}.hlo.txt").write_text(update.lower(state, tokens_BM).compile().as_text())
        losses[name] = loop(update, state, options, batch)
    return losses | routed() | cut_sequences()


def cut_sequences() -> dict[str, list[float]]:
    """The losses of two steps on sequences that are cut among eight devices, and on one device."""
    options = Options(variant="naive", size=context.SIZES["tiny"], steps=2)
    losses = {"one of context": training.train(attention.Block, options)}
    for variant in context.VARIANTS:
        losses[f"context {variant}"] = context.train(replace(options, variant=variant), 8)
    return losses


def routed() -> dict[str, list[float]]:
    """The losses of two steps of the mixture of experts: on one device, and divided among eight."""
    options = Options(variant="scatter", size=experts.SIZES["tiny"], steps=2)
    moe.CAPACITY = ROOM
    losses = {"one of experts": training.train(moe.Block, options)}
    for name, shape in EXPERTS.items():
        update, state, batch = experts.sharded_step(options, experts.mesh_of(shape, "cpu"), capacity=ROOM)
        losses[name] = loop(update, state, options, batch)
    return losses


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    print(json.dumps(main(Path(sys.argv[1]))))
