"""Structure capture: the op graph of one step, recorded below autograd. Never timed.

``start()`` and ``stop()`` are called at step boundaries on the loop's thread, also from within an
optimizer hook: nothing here adds or removes optimizer hooks, which torch iterates over at that moment.
"""

from __future__ import annotations

import gzip
import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.errors import PerfscopeError, UsageError
from perfscope.model.files import json_bytes, write_atomically
from perfscope.model.kernel_cost import Cost
from perfscope.model.op_graph import BATCH_COLUMNS, OP_COLUMNS, OP_GRAPH_SCHEMA, TENSOR_COLUMNS, TokenBatch
from perfscope.profiler.patching import Undo, undo_all, wrap
from perfscope.profiler.torch import compat

if TYPE_CHECKING:
    from perfscope.profiler.torch.op_graph.frames import Frames
    from perfscope.profiler.torch.op_graph.recorder import ModuleStack, RecordingMode


OP_LIMIT = 200_000
"""Ops kept of one step: some 230 MB while recording, 17 MB of JSON. A step of a large transformer has 10,000."""


def available() -> str | None:
    """Why the op graph cannot be captured here; None if it can."""
    return None if importlib.util.find_spec("torch") is not None else "torch is not installed"


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
        self._undo: Undo = undo_all(())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ops inside are not recorded."""
        mode = self._mode
        if mode is None or not mode.active:
            yield
            return
        mode.active = False
        try:
            yield
        finally:
            mode.active = self._mode is mode

    @property
    def count(self) -> int:
        """Ops recorded so far."""
        return 0 if self._table is None else len(self._table)

    def start(self, step: int, *, modules: bool = True, frames: Frames | None = None) -> None:
        """Begins to record; ``step`` is the number the file will carry. Needs torch.

        ``modules``: name modules, by hooks, which would be traced if modules are compiled. ``frames`` names lines in
        another way.
        """
        if self._mode is not None:
            raise UsageError("op graph: start() called twice without stop()")
        import torch

        from perfscope.profiler.torch.op_graph.frames import Frames
        from perfscope.profiler.torch.op_graph.recorder import ModuleStack, RecordingMode

        self._thread = threading.get_ident()
        self._table = OpTable(step, self._limit)
        self._modules = ModuleStack()
        # The folder of now: a program that moves later would otherwise change the names of its files.
        frames = frames or Frames(torch.__file__, Path.cwd())
        self._mode = RecordingMode(self._table, frames, self._modules)
        if modules:
            self._modules.start()
        insert_lowest(self._mode)
        stays = keep_in_inference_mode(lambda: self._mode is not None and threading.get_ident() == self._thread)
        self._undo = undo_all((stays, self._mode.launches.watch()))

    def stop(self) -> None:
        """Ends the recording. It never raises because of changes of the program to the mode stack meanwhile."""
        mode, modules, table = self._mode, self._modules, self._table
        if mode is None or modules is None or table is None:
            return
        self._mode = None
        self._undo()
        self._failure = mode.failure
        mode.active = False
        modules.stop()
        if threading.get_ident() == self._thread:
            remove_mode(mode)
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
    """Put the mode below those of the program.

    The program's modes may then be entered and left in any order: torch pops the topmost, which is never ours.
    """
    above = compat.pop_ordinary_modes()
    compat.push_modes([mode, *above])


def keep_in_inference_mode(is_on: Callable[[], bool]) -> Undo:
    """Keep a mode on while the program enters and leaves ``inference_mode``. ``is_on``: whether this thread has it.

    Leaving restores the dispatch keys of its begin, without those of a mode that was added later.
    """
    from torch.autograd.grad_mode import inference_mode

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            answer = original(*arguments, **named)
            if is_on():
                compat.push_modes(compat.pop_ordinary_modes())
            return answer

        return call

    return undo_all(wrap(inference_mode, name, make) for name in ("__enter__", "__exit__"))


def remove_mode(mode: Any) -> None:
    """Remove the mode from between those of the program."""
    compat.push_modes([entered for entered in compat.pop_ordinary_modes() if entered is not mode])


# The op graph while it grows: columns of numbers, strings by number. Written as compact JSON.


Line = tuple[str | None, int | None, str | None]


class OpTable:
    """Rows in execution order, at most ``limit`` ops; further ops make the graph ``truncated``."""

    def __init__(self, step: int, limit: int) -> None:
        self.step = step
        self.truncated = False
        self.libraries: set[str] = set()
        """Files of installed packages among those of the ops."""
        self._limit = limit
        self._strings: dict[str, int] = {}
        self._texts: list[str] = []
        self._tensor_rows: dict[tuple[Any, ...], int] = {}
        self._ops: dict[str, list[Any]] = {column: [] for column in OP_COLUMNS}
        self._tensors: dict[str, list[Any]] = {column: [] for column in TENSOR_COLUMNS}
        self._reads: list[tuple[int, str, str]] = []
        self._parameters: set[int] = set()
        self.batches: list[TokenBatch] = []
        self._live_out: list[int] = []
        self._storages: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._ops["name"])

    def has_room(self) -> bool:
        """False, and the graph is truncated, if another op does not fit."""
        self.truncated = self.truncated or len(self) >= self._limit
        return not self.truncated

    @property
    def storage(self) -> list[int]:
        """Storage id per tensor row."""
        return self._tensors["storage"]

    def tensor(self, *, storage: int, shape: tuple[int, ...], place: Any, dtype: str, device: str, size: int) -> int:
        """Row of this tensor. ``place`` (strides, offset) keeps two parts of one storage apart."""
        key = (storage, shape, place, dtype)
        row = self._tensor_rows.get(key)
        if row is None:
            row = self._tensor_rows[key] = len(self._tensors["storage"])
            values = (storage, list(shape), self._string(dtype), self._string(device), size)
            for column, value in zip(TENSOR_COLUMNS, values, strict=True):
                self._tensors[column].append(value)
        return row

    def append(
        self,
        *,
        name: str,
        phase: str,
        module: str,
        line: Line,
        host_read: tuple[str, str] | None,
        checkpoint: tuple[str, int] | None = None,
        checks: bool = False,
        loop: tuple[str, int] | None = None,
        declared: Cost | None = None,
        **rest: Any,
    ) -> None:
        """One op. ``host_read``: reason, type of the device of the value; ``checkpoint``, ``loop``: file, line.

        ``declared``: its cost as its author declared it.
        """
        if host_read is not None:
            self._reads.append((len(self), *host_read))
        row = dict(
            rest,
            name=self._string(name),
            phase=self._string(phase),
            module=self._string(module),
            file=self._string(line[0]),
            line=line[1],
            function=self._string(line[2]),
            host_read=None,
            checkpoint_file=None if checkpoint is None else self._string(checkpoint[0]),
            checkpoint_line=None if checkpoint is None else checkpoint[1],
            checks=checks,
            loop_file=None if loop is None else self._string(loop[0]),
            loop_line=None if loop is None else loop[1],
            declared_bytes=None if declared is None else declared.bytes,
            declared_dtype=self._string(declared.dtype or None) if declared is not None else None,
        )
        if declared is not None:
            row["flops"] = declared.total_flops
        for column in OP_COLUMNS:
            self._ops[column].append(row[column])

    def context(self, op: int) -> tuple[str, Line]:
        """(module, (file, line, function)) of an op, to hand on to its backward."""
        file, function = (self._text(self._ops[column][op]) for column in ("file", "function"))
        return self._texts[self._ops["module"][op]], (file, self._ops["line"][op], function)

    def add_parameter(self, storage: int) -> None:
        """Marks a storage as that of a parameter or buffer."""
        self._parameters.add(storage)

    def close(self, live_out: list[int], storages: dict[str, list[Any]]) -> None:
        """Ends the graph: live storages, the device, and the reads that would stall it.

        ``storages``: the columns ``bytes``, ``born`` and ``died``, one row per storage by its id.
        """
        self._live_out = live_out
        self._storages = storages
        device = self.device()
        for op, why, where in self._reads:
            # With an accelerator in the program, host reads of host tensors stall nothing.
            if device == "cpu" or where != "cpu":
                self._ops["host_read"][op] = self._string(why)

    def device(self) -> str:
        """The accelerator the program uses, else ``cpu``."""
        used = [self._texts[code] for code in dict.fromkeys(self._tensors["device"])]
        return next((name for name in used if name not in ("cpu", "meta")), "cpu")

    def save(self, path: Path) -> None:
        """Write the file in one go: a temporary file first, then renamed, so that no partial file is ever seen."""
        document = {
            "schema": OP_GRAPH_SCHEMA,
            "step": self.step,
            "device": self.device(),
            "truncated": self.truncated,
            "strings": self._texts,
            "tensors": self._tensors,
            "ops": self._ops,
            "storages": self._storages,
            "live_out": self._live_out,
            "parameters": sorted(self._parameters),
            "libraries": sorted(self.libraries),
            "batches": {name: [getattr(batch, name) for batch in self.batches] for name in BATCH_COLUMNS},
        }
        text = json_bytes(document)
        # mtime 0: the same step gives the same bytes.
        content = gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text
        write_atomically(path, content, durable=False)

    def _string(self, text: str | None) -> int | None:
        if text is None:
            return None
        code = self._strings.get(text)
        if code is None:
            code = self._strings[text] = len(self._texts)
            self._texts.append(text)
        return code

    def _text(self, code: int | None) -> str | None:
        return None if code is None else self._texts[code]
