"""Notes each checkpoint that the program saves or restores: when, for how long, from which line.

The functions of PyTorch, Orbax, Flax and safetensors that save and load are wrapped once their modules are imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from perfscope.profiler.patching import Undo, undo_all, wrap
from perfscope.profiler.source_files import SourceFiles

MOST_PENDING = 1_000
"""Events kept until the next row; a program that loads more small files than that in ten seconds loads data."""

SAVE, RESTORE = "save", "restore"

CALLS = (
    ("torch.serialization", "", "save", SAVE),
    ("torch.serialization", "", "load", RESTORE),
    ("torch.distributed.checkpoint.state_dict_saver", "", "save", SAVE),
    ("torch.distributed.checkpoint.state_dict_saver", "", "async_save", SAVE),
    ("torch.distributed.checkpoint.state_dict_loader", "", "load", RESTORE),
    ("safetensors.torch", "", "save_file", SAVE),
    ("safetensors.torch", "", "load_file", RESTORE),
    ("orbax.checkpoint.checkpoint_manager", "CheckpointManager", "save", SAVE),
    ("orbax.checkpoint.checkpoint_manager", "CheckpointManager", "restore", RESTORE),
    ("orbax.checkpoint._src.checkpointers.checkpointer", "Checkpointer", "save", SAVE),
    ("orbax.checkpoint._src.checkpointers.async_checkpointer", "AsyncCheckpointer", "save", SAVE),
    ("orbax.checkpoint._src.checkpointers.checkpointer", "Checkpointer", "restore", RESTORE),
)
"""(Module, class, function, what it does). A call inside another one of these is not a second event."""

ALIASES = {
    "torch.serialization": ("torch",),
    "torch.distributed.checkpoint.state_dict_saver": ("torch.distributed.checkpoint",),
    "torch.distributed.checkpoint.state_dict_loader": ("torch.distributed.checkpoint",),
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
    """When all of it was stored: later than the end of an asynchronous save; 0: not known to be."""
    place: str
    """Digest of the path that was written or read, so that a restore finds its save; empty for other objects."""
    storing: Storing | None = None
    """The program while an asynchronous save was stored."""


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
    """The checkpoints since the last look."""

    def __init__(self) -> None:
        """Nothing is wrapped yet."""
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
        for module, holder, function, kind in CALLS:
            if (module, holder, function) in self._wrapped or module not in sys.modules:
                continue
            with suppress(AttributeError, KeyError, TypeError):
                loaded: Any = sys.modules[module]
                owner = getattr(loaded, holder) if holder else loaded
                original = vars(owner)[function]
                self._wrapped.add((module, holder, function))
                self._undos.append(wrap(owner, function, self._noting(kind, function)))
                for alias in ALIASES.get(module, ()):
                    other: Any = sys.modules.get(alias)
                    if other is not None and vars(other).get(function) is original:
                        self._undos.append(wrap(other, function, self._noting(kind, function)))

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
                begin, ok, result = time.perf_counter_ns(), False, None
                try:
                    result = original(*arguments, **named)
                    ok = True
                    return result
                finally:
                    self._inside.depth = 0
                    with suppress(Exception):
                        self._note(kind, name, begin, ok=ok, result=result, place=_place((*arguments, *named.values())))

            return call

        return make

    def _note(self, kind: str, name: str, begin: int, *, ok: bool, result: Any, place: str) -> None:
        now = time.perf_counter_ns()
        line = self._line(sys._getframe(2))
        if not line and threading.current_thread() is not threading.main_thread():
            return  # an asynchronous save stores by the same functions on its own thread
        event = Checkpoint(kind, name, begin, now, line, ok, now if ok else 0, place)
        upload = getattr(result, "upload_completion", result)  # of an AsyncSaveResponse of torch, or a future
        if not callable(getattr(upload, "add_done_callback", None)):
            if len(self._events) < MOST_PENDING:
                self._events.append(event)
            return

        storing = Storing()
        self._storing.append(storing)

        def stored(future: Any) -> None:
            self._storing.remove(storing)
            failed = future.cancelled() or future.exception() is not None
            done = 0 if failed else time.perf_counter_ns()
            self._events.append(event._replace(ok=not failed, done_ns=done, storing=storing))

        upload.add_done_callback(stored)

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
