"""The dispatch mode that tells of each op of a planned program."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfscope.profiler.captures.op_graph_mode import unwraps


class Watcher(Protocol):
    """Who is told."""

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An op was run."""


class EachOp(TorchDispatchMode):  # type: ignore[misc]
    """Tells a watcher of each op."""

    supports_higher_order_operators = True

    def __init__(self, watcher: Watcher) -> None:
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
        with torch._C.DisableTorchFunction():
            self._watcher.seen(func, args, kwargs or {}, result)
        return result
