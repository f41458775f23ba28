"""Notes each checkpoint that the program saves or restores: when, for how long, from which line.

The functions of libraries that save and load (`CALLS`) are wrapped once their modules are imported. A program that
imported a function by name before that is not seen here; its sampled stacks show it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from perfscope.profiler.patching import Undo, undo_all, wrap
from perfscope.profiler.source_files import SourceFiles

MOST_PENDING = 1_000
"""Events kept until the next row; a program that loads more small files than that in ten seconds loads data."""

SAVE, RESTORE, WAIT = "save", "restore", "wait"
"""``WAIT``: for an asynchronous save to be stored."""

Call = tuple[str, str, str, str]
"""(Module, class, function, what it does)."""

CALLS: tuple[Call, ...] = (
    ("torch.serialization", "", "save", SAVE),
    ("torch.serialization", "", "load", RESTORE),
    ("torch.distributed.checkpoint.state_dict_saver", "", "save", SAVE),
    ("torch.distributed.checkpoint.state_dict_saver", "", "async_save", SAVE),
    ("torch.distributed.checkpoint.state_dict_loader", "", "load", RESTORE),
    ("safetensors.torch", "", "save_file", SAVE),
    ("safetensors.torch", "", "load_file", RESTORE),
    ("safetensors.numpy", "", "save_file", SAVE),
    ("safetensors.flax", "", "save_file", SAVE),
    ("flax.training.checkpoints", "", "save_checkpoint", SAVE),
    ("equinox._serialisation", "", "tree_serialise_leaves", SAVE),
    ("jax.experimental.array_serialization.serialization", "GlobalAsyncCheckpointManager", "serialize", SAVE),
    ("keras.src.models.model", "Model", "save", SAVE),
    ("keras.src.models.model", "Model", "save_weights", SAVE),
    ("orbax.checkpoint.checkpoint_manager", "CheckpointManager", "save", SAVE),
    ("orbax.checkpoint.checkpoint_manager", "CheckpointManager", "restore", RESTORE),
    ("orbax.checkpoint._src.checkpointers.checkpointer", "Checkpointer", "save", SAVE),
    ("orbax.checkpoint._src.checkpointers.async_checkpointer", "AsyncCheckpointer", "save", SAVE),
    ("orbax.checkpoint._src.checkpointers.checkpointer", "Checkpointer", "restore", RESTORE),
)
"""A call inside another one of these is not a second event."""

IN_STEPS: tuple[Call, ...] = (
    *(call for call in CALLS if call[3] != RESTORE),
    ("numpy", "", "save", SAVE),
    ("numpy", "", "savez", SAVE),
    ("numpy", "", "savez_compressed", SAVE),
    ("orbax.checkpoint.checkpoint_manager", "CheckpointManager", "wait_until_finished", WAIT),
    ("orbax.checkpoint._src.checkpointers.async_checkpointer", "AsyncCheckpointer", "wait_until_finished", WAIT),
)
"""Calls in the steps of a training that write arrays, or wait until they are written. Restores are left out: a data set
may load a file per sample.
"""

ALIASES = {
    "torch.serialization": ("torch",),
    "torch.distributed.checkpoint.state_dict_saver": ("torch.distributed.checkpoint",),
    "torch.distributed.checkpoint.state_dict_loader": ("torch.distributed.checkpoint",),
    "equinox._serialisation": ("equinox",),
}
"""Modules that hold the same function under the same name."""


class Checkpoint(NamedTuple):
    """A save or a restore; times of ``perf_counter_ns``."""

    kind: str
    call: str
    begin_ns: int
    end_ns: int
    line: str
    ok: bool
    done_ns: int
    """When all of it was stored: later than the end of an asynchronous save; 0: unknown."""
    place: str
    """Digest of the path that was written or read, so that a restore finds its save; empty for other objects."""
    storing: Storing | None = None
    """The program while an asynchronous save was stored."""
    wrote: int = -1
    """Bytes that the process wrote meanwhile; -1: not counted."""
    of_steps: bool = True
    """Whether it ran on the program's main thread."""


class Storing:
    """Samples of the thread of the steps while an asynchronous save was stored; times in ns."""

    __slots__ = ("core_ns", "first", "late_ns", "ran_ns", "steps", "wall_ns")

    def __init__(self) -> None:
        self.first: int | None = None
        """Completed steps at the first sample."""
        self.steps = self.wall_ns = self.ran_ns = self.core_ns = self.late_ns = 0

    def sampled(self, steps: int, wall_ns: int, ran_ns: int, core_ns: int, late_ns: int) -> None:
        """Add a sample. ``steps``: completed so far; ``core_ns``, ``late_ns``: waited for a core, the interpreter."""
        if self.first is None:
            self.first = steps
            return
        self.steps = steps - self.first
        self.wall_ns += wall_ns
        self.ran_ns += ran_ns
        self.core_ns += core_ns
        self.late_ns += late_ns

    def row(self, begin_ns: int) -> list[int]:
        """As in the ledger; ``begin_ns``: of the save."""
        return [begin_ns, self.steps, self.wall_ns, self.ran_ns, self.core_ns, self.late_ns]


class CheckpointLog:
    """The checkpoints since the last call of ``taken``."""

    def __init__(self, calls: Iterable[Call] = CALLS) -> None:
        """Prepare an empty log of ``calls``; ``watch`` wraps them."""
        self._calls = tuple(calls)
        self._files = SourceFiles(Path.cwd(), ())
        self._events: list[Checkpoint] = []
        self._undos: list[Undo] = []
        self._wrapped: set[tuple[str, str, str]] = set()
        self._inside = threading.local()
        self._storing: list[Storing] = []
        """One for each asynchronous save that is not stored yet."""

    def sampled(self, *sample: int) -> None:
        """Add a sample of the thread of the steps to the saves that are being stored (`Storing.sampled`)."""
        for storing in self._storing:
            storing.sampled(*sample)

    @property
    def ended(self) -> bool:
        """Whether a checkpoint ended since the last ``taken``; looks for modules that were imported meanwhile."""
        self.watch()
        return bool(self._events)

    def watch(self) -> None:
        """Wrap the functions of all modules that are imported by now."""
        for module, holder, function, kind in self._calls:
            if (module, holder, function) in self._wrapped or module not in sys.modules:
                continue
            with suppress(AttributeError, KeyError, TypeError):
                loaded: Any = sys.modules[module]
                owner = getattr(loaded, holder) if holder else loaded
                original = vars(owner)[function]
                self._wrapped.add((module, holder, function))
                name = self._call_name(holder, function)
                self._undos.append(wrap(owner, function, self._noting(kind, name)))
                for alias in ALIASES.get(module, ()):
                    other: Any = sys.modules.get(alias)
                    if other is not None and vars(other).get(function) is original:
                        self._undos.append(wrap(other, function, self._noting(kind, name)))

    def _call_name(self, holder: str, function: str) -> str:
        """Name of a call in its event."""
        return function

    def stop(self) -> None:
        """Leave the libraries as they were."""
        undo_all(self._undos)()
        self._undos.clear()

    def taken(self) -> list[Checkpoint]:
        """The events so far, which are forgotten here."""
        events, self._events = self._events, []
        return events

    def put_back(self, events: list[Checkpoint]) -> None:
        """Keep events that could not be written for the next row."""
        self._events = [*events, *self._events][:MOST_PENDING]

    def _noting(self, kind: str, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                if getattr(self._inside, "depth", 0):
                    return original(*arguments, **named)
                self._inside.depth = 1
                wrote = self._written()
                begin, ok, result = time.perf_counter_ns(), False, None
                try:
                    result = original(*arguments, **named)
                    ok = True
                    return result
                finally:
                    self._inside.depth = 0
                    with suppress(Exception):
                        event = Checkpoint(
                            kind, name, begin, time.perf_counter_ns(), "", ok, 0, _place((*arguments, *named.values()))
                        )
                        self._note(event, wrote, result, arguments[0] if arguments else None)

            return call

        return make

    def _written(self) -> int:
        """Bytes that the process has written so far; -1: not counted."""
        return -1

    def _note(self, event: Checkpoint, wrote: int, result: Any, subject: Any) -> None:
        """Keep an event. ``wrote``: bytes before it; ``subject``: first argument of the call."""
        main = threading.current_thread() is threading.main_thread()
        event = event._replace(
            done_ns=event.end_ns if event.ok else 0,
            line=self._line(sys._getframe(2)),
            wrote=self._written() - wrote if wrote >= 0 else -1,
            of_steps=main,
        )
        if not event.line and not main and not self._on_its_own(event):
            return  # an asynchronous save stores by the same functions on its own thread
        upload = getattr(result, "upload_completion", result)  # of an AsyncSaveResponse of torch, or a future
        if not callable(getattr(upload, "add_done_callback", None)):
            if len(self._events) < MOST_PENDING:
                self._keep(event, wrote, subject)
            return

        storing = Storing()
        self._storing.append(storing)

        def stored(future: Any) -> None:
            self._storing.remove(storing)
            failed = future.cancelled() or future.exception() is not None
            done = 0 if failed else time.perf_counter_ns()
            written = self._written() - wrote if wrote >= 0 else -1
            self._events.append(event._replace(ok=not failed, done_ns=done, storing=storing, wrote=written))

        upload.add_done_callback(stored)

    def _on_its_own(self, event: Checkpoint) -> bool:
        """Whether a call without a line of the program, on another thread, is an event."""
        return False

    def _keep(self, event: Checkpoint, wrote: int, subject: Any) -> None:
        """Add an event that is over, or whose end is not known."""
        self._events.append(event)

    def _line(self, frame: FrameType | None) -> str:
        """``train.py:88``: the innermost line of the program; empty if the stack has no such line."""
        while frame is not None:
            path = frame.f_code.co_filename
            if self._files.is_user(path) and f"{os.sep}perfscope{os.sep}plugins" not in path:
                return f"{self._files.name(path)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def _place(arguments: tuple[Any, ...]) -> str:
    """Digest of the first argument that is a path: what is written names no folder of the program."""
    for argument in arguments:
        if isinstance(argument, (str, os.PathLike)):
            path = os.path.abspath(os.fspath(argument))
            if isinstance(path, str):
                return hashlib.sha256(path.encode("utf-8", "replace")).hexdigest()[:16]
    return ""
