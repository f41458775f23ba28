"""Steps of a training loop without an optimizer: from the end of one backward pass to the end of the next.

A loop that updates its parameters by hand (``p -= lr * p.grad``) may have no module either, or calls a model more
often than once per step. The backward passes of the first line that makes two are the steps: a second loss of the step
is on another line. Passes inside another one (reentrant checkpoints) do not count.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from perfscope.profiler.patching import Undo, replace
from perfscope.profiler.session.steps import Source, StepFinder
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.module_calls import TRAINING_CALLS

FIRST_CALLS = 2
"""Passes of a line from which it is the loop's: one may be a check before it."""

_ENGINE = "_engine_run_backward"
"""Function that ``Tensor.backward``, ``torch.autograd.backward`` and ``torch.autograd.grad`` call."""


class BackwardCalls:
    """Finds the line whose backward passes are the steps and reports them as ``Source.BACKWARD``."""

    def __init__(self, finder: StepFinder, optimizer_exists: Callable[[], bool]) -> None:
        """``optimizer_exists()``: then further passes are awaited, because its steps come first and are better."""
        self._finder = finder
        self._optimizer_exists = optimizer_exists
        self._inside = threading.local()
        self._calls: Counter[tuple[CodeType, int]] = Counter()
        self._followed: tuple[CodeType, int] | None = None
        self._torch = ""
        self._listening = False

    def install(self) -> Undo:
        """Watch the engine. Returns what takes the hook out."""
        import torch

        original = vars(torch.autograd).get(_ENGINE)
        if original is None:
            return lambda: None
        self._torch = str(Path(torch.__file__).parent) + os.sep
        self._listening = True
        undo = replace(torch.autograd, _ENGINE, functools.wraps(original)(self._watched(original)))

        def remove() -> None:
            self._listening = False
            undo()

        return remove

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if compat.is_compiling() or not self._listening:
                return original(*arguments, **named)
            local = self._inside
            local.depth = getattr(local, "depth", 0) + 1
            try:
                answer = original(*arguments, **named)
            finally:
                local.depth -= 1
            if local.depth == 0:
                self._ended(sys._getframe(1))
            return answer

        return run

    def _ended(self, frame: FrameType) -> None:
        """A pass ended. ``frame``: that of the function of torch that made it."""
        name, outside = frame.f_code.co_name, self._outside(frame)
        if outside is None:
            return
        line = outside.f_code, outside.f_lasti
        if self._followed is None:
            self._calls[line] += 1
            calls = self._calls[line]
            if calls >= FIRST_CALLS + (TRAINING_CALLS if self._optimizer_exists() else 0):
                self._followed = line
                self._calls.clear()
                self._finder.called(Source.BACKWARD, name, calls - 1)
        elif self._followed == line:
            self._finder.edge(Source.BACKWARD)

    def _outside(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame outside of torch; ``None`` on a thread of the engine."""
        while frame is not None and frame.f_code.co_filename.startswith(self._torch):
            frame = frame.f_back
        return frame
