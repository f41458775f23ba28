"""Structure capture: the op graph of one step, recorded below autograd. Never timed.

``start()`` and ``stop()`` are called at step boundaries on the loop's thread, also from within an
optimizer hook: nothing here adds or removes optimizer hooks, which torch iterates over at that moment.
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.errors import PerfscopeError, UsageError
from perfscope.profiler.torch import compat

if TYPE_CHECKING:
    from perfscope.profiler.torch.op_graph.frames import Frames
    from perfscope.profiler.torch.op_graph.recorder import ModuleStack, RecordingMode
    from perfscope.profiler.torch.op_graph.table import OpTable

OP_LIMIT = 200_000
"""Ops kept of one step: some 230 MB while recording, 17 MB of JSON. A step of a large transformer has 10,000."""


def available() -> str | None:
    """Why the op graph cannot be captured here; None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    return compat.no_op_graph_reason()


class OpGraphCapture:
    """Records one step: ``start(step)``, the step, ``stop()``, ``save(path)``.

    Memory is freed as without it, and results stay bit-identical; the step takes several times as long.
    """

    def __init__(self, *, limit: int = OP_LIMIT) -> None:
        self._limit = limit
        self._mode: RecordingMode | None = None
        self._modules: ModuleStack | None = None
        self._table: OpTable | None = None
        self._thread = 0
        self._failure: str | None = None

    @property
    def mode(self) -> RecordingMode | None:
        """What records now; its ``active`` may be taken back for a while."""
        return self._mode

    @property
    def count(self) -> int:
        """Ops recorded so far."""
        return 0 if self._table is None else len(self._table)

    def start(self, step: int, modules: ModuleStack | None = None, frames: Frames | None = None) -> None:
        """Begins to record; ``step`` is the number the file will carry. Needs torch.

        ``modules`` and ``frames`` name modules and lines, where they are to be named in another way.
        """
        if self._mode is not None:
            raise UsageError("op graph: start() called twice without stop()")
        import torch

        from perfscope.profiler.torch.op_graph.frames import Frames
        from perfscope.profiler.torch.op_graph.recorder import ModuleStack, RecordingMode
        from perfscope.profiler.torch.op_graph.table import OpTable

        self._thread = threading.get_ident()
        self._table = OpTable(step, self._limit)
        self._modules = modules or ModuleStack()
        # The folder of now: a program that moves later would otherwise change the names of its files.
        frames = frames or Frames(torch.__file__, Path.cwd())
        self._mode = RecordingMode(self._table, frames, self._modules)
        self._modules.start()
        insert_lowest(self._mode)

    def stop(self) -> None:
        """Ends the recording. It never raises for what the program did to the mode stack meanwhile."""
        mode, modules, table = self._mode, self._modules, self._table
        if mode is None or modules is None or table is None:
            return
        self._mode = None
        self._failure = mode.failure
        mode.active = False
        modules.stop()
        if threading.get_ident() == self._thread:
            _remove(mode)
        for parameter in modules.parameters():
            storage = mode.storages.find(parameter)
            if storage is not None:
                table.add_parameter(storage)
        storages, alive = mode.storages, mode.storages.alive()
        # Copies: what dies from now on is no longer of this step.
        table.close(alive, {"bytes": list(storages.bytes), "born": list(storages.born), "died": list(storages.died)})

    def save(self, path: Path) -> None:
        """Writes the graph as JSON, gzip if the name ends in ``.gz``.

        ``UsageError`` before ``stop()``; ``PerfscopeError`` with the reason if an op could not be recorded.
        """
        if self._table is None or self._mode is not None:
            raise UsageError(f"{path}: no op graph to save; start() and stop() come first")
        if self._failure is not None:
            raise PerfscopeError(f"{path}: no op graph: {self._failure}")
        self._table.save(path)


def insert_lowest(mode: Any) -> None:
    """Puts the mode below those of the program.

    They may then be entered and left around us in any order: torch pops the topmost, which is never ours.
    """
    above = compat.pop_ordinary_modes()
    compat.push_modes([mode, *above])


def _remove(mode: Any) -> None:
    compat.push_modes([entered for entered in compat.pop_ordinary_modes() if entered is not mode])
