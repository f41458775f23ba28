"""Recordings of device memory: snapshots of a simulated allocator, and a compiled program on a smaller device.

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


MEMORIES: dict[str, Callable[[Path], Path]] = {
    function.__name__: function for function in (batch_too_large, ever_longer_prompts, no_checkpoints)
}
