"""The dispatch mode of the ledger of memory, and where a tensor's bytes lie."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfscope.profiler.captures.op_graph_mode import unwraps


class MemoryMode(TorchDispatchMode):  # type: ignore[misc]
    """Tells the ledger of each op."""

    supports_higher_order_operators = True

    def __init__(self, ledger: Any) -> None:
        super().__init__()
        self._ledger = ledger

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(unwraps, types)):
            return NotImplemented  # the subclass takes its tensors apart, and we see the ops on the parts
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            self._ledger.seen(func, args, kwargs or {}, result)
        return result


def inner(tensor: Any) -> Any:
    """What a tensor that is spread over processes is here."""
    if not unwraps(type(tensor)):
        return tensor
    names, _ = tensor.__tensor_flatten__()
    return inner(getattr(tensor, names[0])) if names else tensor


def storage_of(tensor: Any) -> Any:
    """Of a dense tensor; sparse and opaque ones have none that has a size."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
