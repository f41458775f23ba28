"""The dispatch mode that tells of each op of a planned program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from perfscope.model.errors import PerfscopeError
from perfscope.profiler.ahead.torch import compat
from perfscope.profiler.torch.op_graph.capture import OP_LIMIT, OpGraphCapture
from perfscope.profiler.torch.op_graph.frames import Frames
from perfscope.profiler.torch.op_graph.recorder import ModuleStack, unwraps


class OpWatcher(Protocol):
    """Who is told."""

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An op was run."""


class OpWatchMode(compat.DispatchMode):  # type: ignore[misc]
    """Tells a watcher of each op."""

    supports_higher_order_operators = True

    def __init__(self, watcher: OpWatcher) -> None:
        super().__init__()
        self._watcher = watcher

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(unwraps, types)):
            return NotImplemented  # the subclass takes its tensors apart, and we see the ops on the parts
        result = func(*args, **(kwargs or {}))
        with compat.without_torch_functions():
            self._watcher.seen(func, args, kwargs or {}, result)
        return result


# What is dispatched while torch's compiler works, or while a planned graph stands in for its kernels, is nobody's.


class WatcherPause:
    """``watchers``: contexts in which one that looks at ops looks away."""

    def __init__(self, watchers: Sequence[Callable[[], AbstractContextManager[None]]]) -> None:
        self._watchers = watchers
        self._held: ExitStack | None = None

    @property
    def compiling(self) -> bool:
        """Whether the compiler is at work; it may run a graph it has just made, to see the sizes of its results."""
        return self._held is not None

    @contextmanager
    def around(self, watchers: int | None = None) -> Iterator[None]:
        """Everybody looks away; the first so many of them."""
        with ExitStack() as stack:
            for watcher in self._watchers[:watchers]:
                stack.enter_context(watcher())
            yield

    def listen(self) -> None:
        """To the compiler, from now on."""

        def begins() -> None:
            held = ExitStack()
            held.enter_context(self.around())
            self._held = held

        def ends() -> None:
            held, self._held = self._held, None
            if held is not None:
                held.close()

        compat.on_compilation(begins, ends)


# Keeps the ops of one step that the program dispatches itself, on fakes as on real tensors.


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
        self._capture.start(step, modules=None if self._modules else EmptyModuleStack(), frames=self._frames)

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


class EmptyModuleStack(ModuleStack):
    """Knows no module and sets no hook."""

    def start(self) -> None:
        """Nothing."""

    def parameters(self) -> list[Any]:
        """None."""
        return []


# Where a tensor's bytes lie.


def dense_parts(tensor: Any) -> Iterator[Any]:
    """The dense tensors that hold a tensor's bytes: itself, or those that a wrapper subclass holds."""
    if unwraps(type(tensor)):
        names, _ = tensor.__tensor_flatten__()
        for part in (getattr(tensor, name) for name in names):  # a mesh may be among them
            if isinstance(part, torch.Tensor):
                yield from dense_parts(part)
    else:
        yield tensor


def storage_of(tensor: Any) -> Any:
    """Of a dense tensor; opaque ones have none that has a size."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
