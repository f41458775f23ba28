"""CUDA memory snapshots: over the pass with stacks, and after a failed allocation.

The history is recorded only in the detail pass, which is never timed; each event costs some microseconds and holds a
Python stack. A snapshot of the allocator is written whenever memory runs out.
"""

from __future__ import annotations

import gzip
import os
import pickle
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from perfscope.model.documents.run import Capture, Process
from perfscope.profiler.session import process_state
from perfscope.profiler.session.passes import Pass
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.op_graph.frames import Frames
from perfscope.profiler.torch.tensors import TorchTensorsCapture

TOOL = "torch_memory"
PASS = "memory"  # noqa: S105 (the name of a pass)
FAILED_PASS = "out_of_memory"  # noqa: S105
FILE = "memory.pickle.gz"
FAILED_FILE = "out_of_memory.pickle.gz"

MOST_ENTRIES = 100_000
"""Events kept, the last ones: a step of a large model makes some ten thousand. About 100 bytes each in the file,
whose stacks are shared."""
MOST_FAILURES = 3
"""Snapshots written of failed allocations, each over the previous one: a program that searches for its largest batch
fails on purpose, and the last failure is the one that ended it, unless it continues to fail."""
COMPRESSION = 1


def available() -> str | None:
    """Why no CUDA memory snapshot can be taken in this process, or None."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device: the CPU's allocator keeps no history (its events are in the detail pass)"
    return None


class TorchMemoryCapture:
    """The snapshots of one process. Does nothing, without a message, if CUDA is not in use."""

    def __init__(self) -> None:
        """Nothing records yet."""
        self._undo: compat.Undo | None = None
        self._first = 0
        self._watched = False
        self._failures = 0
        self._directory: Path | None = None
        self._pid = os.getpid()
        self._saved: dict[str, Capture] = {}

    def watch(self, directory: Path) -> None:
        """Keep a snapshot in ``directory`` should memory run out from now on."""
        self._directory = directory
        if not self._watched and compat.cuda_in_use():
            self._watched = True
            try:
                compat.watch_out_of_memory(self._out_of_memory)
            except Exception as error:
                self._missing(FAILED_PASS, reason=f"it cannot be watched for: {type(error).__name__}: {error}")

    def begin(self, step: int) -> None:
        """A pass begins with ``step``; record, if its times are not used."""
        if self._undo is not None or not compat.cuda_in_use():
            return
        try:
            self._undo, self._first = compat.record_memory_history(MOST_ENTRIES), step
        except Exception as error:
            self._missing(PASS, reason=f"no memory history: {type(error).__name__}: {error}")

    def end(self, directory: Path, step: int) -> None:
        """The pass ended with ``step``: write its snapshot."""
        if self._undo is None:
            return
        try:
            self._dump(directory / FILE, PASS, (self._first, step + 1))
        except Exception as error:  # the pass itself is whole
            self._missing(PASS, reason=f"no memory snapshot: {type(error).__name__}: {error}")
        finally:
            self.stop()

    def stop(self) -> None:
        """Record no more."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def save(self) -> list[Capture]:
        """Captures so far."""
        return list(self._saved.values())

    def _out_of_memory(self) -> None:
        """On the thread whose allocation failed; the program must get its own error, whatever happens here."""
        if self._failures >= MOST_FAILURES or self._directory is None or os.getpid() != self._pid:
            return
        self._failures += 1
        try:
            self._dump(self._directory / FAILED_FILE, FAILED_PASS, None)
        except Exception as error:  # becomes the reason of a missing capture
            self._missing(FAILED_PASS, reason=f"no snapshot of it: {type(error).__name__}: {error}")

    def _dump(self, path: Path, pass_name: str, steps: tuple[int, int] | None) -> None:
        snapshot = compat.memory_snapshot()
        name_files(snapshot, Frames(str(sys.modules["torch"].__file__), Path.cwd()))
        partial = path.with_name(f".{path.name}.part")
        with gzip.open(partial, "wb", compresslevel=COMPRESSION) as stream:
            pickle.dump(snapshot, stream, protocol=4)
        partial.replace(path)
        self._saved[pass_name] = Capture(
            pass_name=pass_name,
            tool=TOOL,
            state="recorded",
            steps=steps,
            artifact=f"{path.parent.name}/{path.name}",
        )

    def _missing(self, pass_name: str, *, reason: str) -> None:
        self._saved.setdefault(pass_name, Capture(pass_name=pass_name, tool=TOOL, state="missing", reason=reason))


def name_files(snapshot: dict[str, Any], frames: Frames) -> None:
    """Call the files of all stacks as the user would, in place: torch gives whole paths, which tell of a machine."""
    seen: set[int] = set()
    for stack in _stacks(snapshot):
        if id(stack) in seen:  # blocks and events share their stacks
            continue
        seen.add(id(stack))
        for frame in stack:
            frame["filename"] = frames.name(frame["filename"])


def _stacks(snapshot: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for segment in snapshot.get("segments", ()):
        yield segment.get("frames", [])
        for block in segment.get("blocks", ()):
            yield block.get("frames", [])
    for events in snapshot.get("device_traces", ()):
        for event in events:
            yield event.get("frames", [])


# Memory of a process when passes begin and when they end: tensors by name, allocator counters, CUDA snapshots.


UNTIMED_PASS = "detail"  # noqa: S105 (no password)
"""The pass during which the allocator's history is recorded, because its times are not used."""


class MemoryRecorder:
    """Records memory during the passes of a process. Without torch it only reads counters."""

    def __init__(self, run: Path, *, wanted: bool = True) -> None:
        """Nothing is listened to yet, nor ever if it is not ``wanted``: it costs, where only times are taken."""
        self._run = run
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
        """Restore torch, except for the observer of failed allocations, which torch keeps."""
        self._tensors.stop()
        self._snapshots.stop()

    def before(self, seen: Process, due: Pass, number: int, optimizers: Iterable[Any]) -> Process:
        """Before a pass that begins with step ``number``: return ``seen`` with data that the recording cannot see."""
        first, sums = not seen.memory, {}
        if self._listens:
            if first or due.memory:
                sums = self._tensors.begin(due.name, number, optimizers)
            self._snapshots.watch(self._run / seen.directory)
            if due.memory and due.name == UNTIMED_PASS:
                self._snapshots.begin(number)
        return process_state.with_memory(seen, sums) if first else seen

    def after(self, seen: Process, number: int, *, last: bool) -> Process:
        """A pass ended with step ``number``; ``last``: it was the last pass."""
        if self._listens:
            self._tensors.end()
            self._snapshots.end(self._run / seen.directory, number)
        if not last:
            return seen
        if not compat.has_compiled():  # compiled code has a guard on the number of registration hooks
            self._tensors.stop()
        return process_state.with_memory_after(seen)

    def save(self, directory: Path) -> list[Capture]:
        """Write new snapshots, and return their captures."""
        return [*self._tensors.save(directory, self._run), *self._snapshots.save()]
