"""What a process holds when passes begin and when they end: tensors by name, allocator counters, CUDA snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perfscope.profiler import observe
from perfscope.profiler.captures.torch_memory import TorchMemoryCapture
from perfscope.profiler.captures.torch_tensors import TorchTensorsCapture
from perfscope.profiler.observe import Seen
from perfscope.profiler.plan import Pass
from perfscope.profiler.run import Capture

UNTIMED = "detail"
"""The pass beside which the allocator's history is recorded: nobody uses its times."""


class HeldMemory:
    """Stands beside the passes of a process. Without torch it only reads counters."""

    def __init__(self, *, wanted: bool = True) -> None:
        """Nothing is listened to yet, nor ever if it is not ``wanted``: it costs, where only times are taken."""
        self._wanted = wanted
        self._tensors = TorchTensorsCapture()
        self._snapshots = TorchMemoryCapture()
        self._listens = False

    def listen(self) -> None:
        """Torch is imported: its models are about to be built."""
        if not self._wanted:
            return
        self._listens = True
        self._tensors.start()

    def stop(self) -> None:
        """Leave torch as it was, but for the observer of failed allocations, which torch keeps."""
        self._tensors.stop()
        self._snapshots.stop()

    def before(self, seen: Seen, due: Pass, number: int, optimizers: Iterable[Any]) -> Seen:
        """A pass is about to begin with step ``number``: ``seen``, with what its recording cannot see."""
        first, sums = not seen.memory, {}
        if self._listens:
            if first or due.memory:
                sums = self._tensors.begin(due.name, number, optimizers)
            self._snapshots.watch(seen.path)
            if due.memory and due.name == UNTIMED:
                self._snapshots.begin(number)
        return observe.with_memory(seen, sums) if first else seen

    def after(self, seen: Seen, number: int, *, last: bool) -> Seen:
        """A pass ended with step ``number``; ``last``: none is to come."""
        if self._listens:
            self._tensors.end()
            self._snapshots.end(seen.path, number)
        if not last:
            return seen
        self._tensors.stop()
        return observe.with_memory_after(seen)

    def save(self, directory: Path, run: Path) -> list[Capture]:
        """Write what is not on disk yet, and say what is there."""
        return [*self._tensors.save(directory, run), *self._snapshots.save()]
