"""Settings of the program that cost time in every step, with the user's line that made them.

Only calls that a program makes rarely are watched, so that its steps cost nothing more.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any

from perfscope.model.documents.run import ProgramFact
from perfscope.profiler.patching import Undo, wrap
from perfscope.profiler.source_files import SourceFiles
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.graph_calls import GraphCalls

MOST_FACTS = 50
"""Facts that are kept of one process."""
VARIABLES = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG", "TORCH_SHOW_CPP_STACKTRACES")
"""Variables of the environment that slow a program down. Their values are a few known words."""
MOST_VALUE = 20
"""Characters of a value that are kept."""
MOST_LINES = 4
"""Innermost user frames of the stack."""
MOST_NAME = 60
"""Characters of the name of a class that are kept."""


class ProgramFacts:
    """Settings of one process, each kind and line once."""

    def __init__(self) -> None:
        self._files = SourceFiles(Path.cwd(), ())
        self._facts: dict[tuple[str, str | None, int | None], ProgramFact] = {}
        self._undo: list[Undo] = []
        self._stacks: Undo | None = None
        self._stack_ns = self._stack_count = 0
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.graph_calls = GraphCalls(self._users_lines)

    def watch(self) -> None:
        """Hook torch, which is imported."""
        import torch
        from torch.autograd import anomaly_mode

        self._files = SourceFiles(Path.cwd(), Path(torch.__file__).parents[:1])
        self._undo = [
            wrap(anomaly_mode.detect_anomaly, "__enter__", self._after(self._anomaly)),
            wrap(anomaly_mode.set_detect_anomaly, "__init__", self._after(self._anomaly)),
            wrap(torch.nn.Module, "double", self._after(self._double)),
            wrap(torch, "set_default_dtype", self._after(self._default_dtype)),
            self.graph_calls.install(),
        ]
        if hasattr(torch.utils.data.DataLoader, "_get_iterator"):
            self._undo.append(wrap(torch.utils.data.DataLoader, "_get_iterator", self._starting_workers))

    def stop(self) -> None:
        """Leave torch as it was."""
        while self._undo:
            self._undo.pop()()
        if self._stacks is not None:
            self._stacks()

    def noted(self) -> tuple[ProgramFact, ...]:
        """All facts so far: the watched ones, and the settings of torch and of the environment."""
        facts = list(self._facts.values())
        if self._stack_count:
            facts.append(ProgramFact(name="anomaly_stacks", count=self._stack_count, total_ns=self._stack_ns))
        facts += [
            ProgramFact(name="unused_graph", value=kind[:MOST_NAME], file=file, line=line, count=calls)
            for kind, (file, line), calls in self.graph_calls.unused()
        ]
        return (*facts[:MOST_FACTS], *_settings())

    def _after(self, look: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a wrapper that calls ``look`` with the arguments when the function has returned."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                answer = original(*arguments, **named)
                if not compat.is_compiling():
                    look(*arguments)
                return answer

            return call

        return make

    def _note(self, name: str, value: str = "") -> None:
        file, line = self._users_line(sys._getframe(2))
        key = (name, file, line)
        if key in self._facts or len(self._facts) < MOST_FACTS:
            before = self._facts.get(key)
            count = 1 if before is None else before.count + 1
            self._facts[key] = ProgramFact(name=name, value=value, file=file, line=line, count=count)

    def _starting_workers(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def get_iterator(loader: Any) -> Any:
            answer = original(loader)
            if loader.num_workers:
                self._note("loader_start", "same loader" if loader in self._loaders else "new loader")
                self._loaders.add(loader)
            return answer

        return get_iterator

    def _users_line(self, frame: FrameType | None) -> tuple[str | None, int | None]:
        return next(iter(self._users_lines(frame)), (None, None))

    def _users_lines(self, frame: FrameType | None) -> tuple[tuple[str, int], ...]:
        """Lines outside installed packages, innermost first; if all are installed, those outside frameworks."""
        own: list[tuple[str, int]] = []
        library: list[tuple[str, int]] = []
        while frame is not None and len(own) < MOST_LINES:
            path = frame.f_code.co_filename
            if self._files.is_user(path):
                (library if self._files.is_installed(path) else own).append((self._files.name(path), frame.f_lineno))
            frame = frame.f_back
        return tuple(own or library[:MOST_LINES])

    def _anomaly(self, *_: Any) -> None:
        import torch

        if not torch.is_anomaly_enabled():
            return
        self._note("anomaly_mode", "checks for NaN" if torch.is_anomaly_check_nan_enabled() else "keeps stacks")
        if self._stacks is None:
            self._stacks = compat.time_anomaly_stacks(self._stack_kept)

    def _stack_kept(self, begin_ns: int) -> None:
        self._stack_ns += perf_counter_ns() - begin_ns
        self._stack_count += 1

    def _double(self, module: Any, *_: Any) -> None:
        self._note("float64", f"{type(module).__name__}.double()"[:MOST_VALUE])

    def _default_dtype(self, *_: Any) -> None:
        import torch

        if torch.get_default_dtype() is torch.float64:
            self._note("float64", "default dtype")


def _settings() -> list[ProgramFact]:
    torch: Any = sys.modules.get("torch")
    facts = [
        ProgramFact(name=name.lower(), value=os.environ[name][:MOST_VALUE])
        for name in VARIABLES
        if os.environ.get(name, "0") not in ("", "0")
    ]
    if torch is None:
        return facts
    read = {
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }
    return facts + [ProgramFact(name=name, value=str(value).lower()[:MOST_VALUE]) for name, value in read.items()]
