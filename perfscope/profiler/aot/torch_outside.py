"""Keeps the ops of one step that the program dispatches itself, on fakes as on real tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfscope.profiler.captures.op_graph import OP_LIMIT, OpGraphCapture
from perfscope.profiler.captures.op_graph_frames import Frames
from perfscope.profiler.captures.op_graph_modules import ModuleStack
from perfscope.profiler.errors import PerfscopeError


class OpRecorder:
    """An op graph of one step, written to ``path``; ``paused()`` keeps the compiler's own ops out of it."""

    def __init__(self, path: Path, frames: Frames, *, modules: bool) -> None:
        """``modules``: name modules by hooks; hooks would be traced where modules are compiled."""
        self.path, self._frames = path, frames
        self._capture = OpGraphCapture(limit=OP_LIMIT)
        self._modules = modules

    @property
    def count(self) -> int:
        """Ops recorded so far."""
        return self._capture.count

    def start(self, step: int) -> None:
        """Begin to record."""
        self._capture.start(step, modules=None if self._modules else NoModules(), frames=self._frames)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ops inside are not recorded."""
        mode = self._capture.mode
        if mode is None or not mode.active:
            yield
            return
        mode.active = False
        try:
            yield
        finally:
            mode.active = self._capture.mode is mode

    def stop(self) -> str | None:
        """End and write; why there is no file, or ``None``."""
        self._capture.stop()
        try:
            self._capture.save(self.path)
        except PerfscopeError as error:
            return str(error).partition(": ")[2]
        return None


class NoModules(ModuleStack):
    """Knows no module and sets no hook."""

    def start(self) -> None:
        """Nothing."""

    def parameters(self) -> list[Any]:
        """None."""
        return []
