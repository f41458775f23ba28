"""Recordings of memory: snapshots of a simulated allocator, and compiled programs.

The docstring of each function describes its defect.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.caching_allocator import MIB, CachingAllocator, OutOfMemoryError
from tests.conftest import REPOSITORY

GIB = 1 << 30


def saved(allocator: CachingAllocator, folder: Path, name: str) -> Path:
    """Write a snapshot as ``torch.cuda.memory._dump_snapshot`` does."""
    path = folder / f"{name}.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return path


def batch_too_large(folder: Path) -> Path:
    """The activations of the layers fill the device in the forward pass of the first step."""
    allocator = CachingAllocator(24 * GIB)
    allocator.stack = (("__init__", "torch/nn/modules/linear.py", 112), ("build", "train.py", 12))
    for _ in range(24):
        allocator.allocate(256 * MIB)
    allocator.stack = (("linear", "torch/nn/functional.py", 2_310), ("forward", "model.py", 41))
    try:
        while True:
            allocator.allocate(384 * MIB)
    except OutOfMemoryError:
        return saved(allocator, folder, "batch_too_large")


def ever_longer_prompts(folder: Path) -> Path:
    """Each prompt is longer than all before it, and a small result of each is kept between the large buffers."""
    allocator = CachingAllocator()
    last = allocator.allocate(64 * MIB)
    for number in range(1, 33):
        allocator.stack = (("scores", "model.py", 73), ("answer", "serve.py", 30))
        new = allocator.allocate((64 + 24 * number) * MIB)
        allocator.free(last)
        allocator.stack = (("keep", "serve.py", 34), ("answer", "serve.py", 31))
        allocator.allocate(3 * MIB)
        last = new
    return saved(allocator, folder, "ever_longer_prompts")


def no_checkpoints(folder: Path) -> Path:
    """A compiled step of a transformer that saves all activations, on a device that it all but fills."""
    into = folder / "no_checkpoints"
    shutil.copytree(REPOSITORY / "fixtures" / "programs-h100" / "attention-policy-none", into)
    compiled = json.loads((into / "compile.json").read_text(encoding="utf-8"))
    target = compiled["target"]
    target["memory_bytes"] = target["description"]["memory_bytes"] = 960 * MIB
    target["description"]["assumptions"].append("each device has 960MiB of memory, as --memory says")
    (into / "compile.json").write_text(json.dumps(compiled), encoding="utf-8")
    return into


CONSTANT = """HloModule jit_train_step, is_scheduled=true

ENTRY %main (weights: f32[1600,32], rows: s32[64,1]) -> f32[64,32] {
  %weights = f32[1600,32]{1,0} parameter(0), metadata={op_name="weights"}
  %rows = s32[64,1]{1,0} parameter(1), metadata={op_name="rows"}
  %images = f32[6000,1600]{1,0} constant({...})
  %batch = f32[64,1600]{1,0} gather(%images, %rows), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,1600}, \
metadata={op_name="jit(train_step)/gather" source_file="train.py" source_line=14}
  ROOT %dot = f32[64,32]{1,0} dot(%batch, %weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(train_step)/dot_general" source_file="train.py" source_line=15}
}
"""


def data_set_as_constant(folder: Path) -> Path:
    """A jitted step closes over its training set, which XLA compiles into the program."""
    path = folder / "data_set_as_constant.txt"
    path.write_text(CONSTANT, encoding="utf-8")
    return path


MEMORIES: dict[str, Callable[[Path], Path]] = {
    function.__name__: function
    for function in (batch_too_large, ever_longer_prompts, no_checkpoints, data_set_as_constant)
}
