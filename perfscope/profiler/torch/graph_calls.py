"""Calls of models whose autograd graph no backward pass uses, with the user's line of the call.

Two kinds of calls are sampled: calls of outermost modules while the steps of the program are searched, and calls of a
model after ``model.eval()`` in programs that compile no model. A hook on the autograd node of the output detects
whether a backward pass reached it; it returns nothing and holds no tensor.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any

from perfscope.profiler.patching import Undo, undo_all, wrap
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.watched_calls import watch_calls

MOST_SAMPLES = 16
"""Calls of one module and line."""
MOST_CALLS = 64
"""Calls in evaluation mode after which a module is watched no more."""
MOST_MODULES = 8
"""Modules put into evaluation mode that are watched."""
MOST_OUTPUTS = 8
"""Tensors of one output."""
DEPTH = 3
"""Levels of containers in an output."""

Line = tuple[str, int]


class _Sample:
    """One call: whether a backward pass came to its output."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = False

    def __call__(self, *_: Any) -> None:
        self.used = True


class GraphCalls:
    """The sampled calls of one process."""

    def __init__(self, lines: Callable[[FrameType], tuple[Line, ...]]) -> None:
        """``lines``: the user's lines of a frame and of its callers, innermost first."""
        self._lines = lines
        self._samples: dict[tuple[str, bool, tuple[Line, ...]], list[_Sample]] = defaultdict(list)
        self._watched: dict[int, Undo] = {}
        self._modules = 0
        self._inside = threading.local()

    def install(self) -> Undo:
        """Watch ``eval()`` of modules, until the program compiles one: a watched class would be compiled again."""
        import torch

        undo = undo_all(
            [
                wrap(torch.nn.Module, "eval", self._evaluating),
                wrap(torch.nn.Module, "compile", self._compiling),
                wrap(torch, "compile", self._compiling),
            ]
        )

        def remove() -> None:
            undo()
            self._leave_all()

        return remove

    def _leave_all(self) -> None:
        self._modules = MOST_MODULES
        for number in list(self._watched):
            self._watched.pop(number)()

    def _compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_(*arguments: Any, **named: Any) -> Any:
            self._leave_all()
            return original(*arguments, **named)

        return compile_

    def called(self, module: Any, output: Any, frame: FrameType) -> None:
        """An outermost module was called below ``frame`` and returned ``output``."""
        if module.training or id(module) not in self._watched:  # else its own watch samples the call
            self._sample(module, output, frame)

    def _sample(self, module: Any, output: Any, frame: FrameType) -> None:
        with suppress(Exception):  # what an output may do when it is looked at must not reach the program
            if compat.is_compiling() or compat.transforms_functions():
                return
            nodes = list(_nodes(output, DEPTH))
            if not nodes or not any(parameter.requires_grad for parameter in module.parameters()):
                return  # a module without parameters, such as a loss, continues the graph of another
            samples = self._samples[type(module).__name__, module.training, self._lines(frame)]
            if len(samples) < MOST_SAMPLES:
                sample = _Sample()
                samples.append(sample)
                for node in nodes[:MOST_OUTPUTS]:
                    node.register_prehook(sample)

    def unused(self) -> Iterator[tuple[str, Line, int]]:
        """(class of the module, line, sampled calls) of places where no sampled call was used.

        The line is the innermost one that no used call shares; for a function that training also calls, its caller.
        """
        used = {line for (_, _, lines), samples in self._samples.items() if _used(samples) for line in lines}
        calls: dict[tuple[str, Line], int] = defaultdict(int)
        for (kind, _, lines), samples in self._samples.items():
            line = next((line for line in lines if line not in used), None)
            if line is not None and not _used(samples):
                calls[kind, line] += len(samples)
        for (kind, line), count in calls.items():
            yield kind, line, count

    def _evaluating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(module: Any) -> Any:
            answer = original(module)
            if not compat.is_compiling() and id(module) not in self._watched and self._modules < MOST_MODULES:
                self._modules += 1
                with suppress(Exception):  # a class whose calls cannot be replaced
                    self._watched[id(module)] = watch_calls(module, self._watching())
            return answer

        return evaluate

    def _watching(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        left = [MOST_CALLS]

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(module: Any, *arguments: Any, **named: Any) -> Any:
                if module.training or left[0] <= 0 or compat.is_compiling():
                    return original(module, *arguments, **named)
                self._inside.depth = getattr(self._inside, "depth", 0) + 1
                try:
                    output = original(module, *arguments, **named)
                finally:
                    self._inside.depth -= 1
                if not self._inside.depth:
                    left[0] -= 1
                    self._sample(module, output, sys._getframe(1))
                return output

            return call

        return make


def _used(samples: list[_Sample]) -> bool:
    return any(sample.used for sample in samples)


def _nodes(value: Any, depth: int) -> Iterator[Any]:
    """Autograd nodes of the tensors in an output."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.grad_fn is not None:
            yield value.grad_fn
    elif depth and isinstance(value, Mapping):
        for inner in list(value.values())[:MOST_OUTPUTS]:
            yield from _nodes(inner, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for inner in value[:MOST_OUTPUTS]:
            yield from _nodes(inner, depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__"):
        for inner in list(vars(value).values())[:MOST_OUTPUTS]:
            yield from _nodes(inner, depth - 1)
