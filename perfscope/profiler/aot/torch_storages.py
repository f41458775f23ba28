"""Where a tensor's bytes lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from perfscope.profiler.captures.op_graph_mode import unwraps


def parts_of(tensor: Any) -> Iterator[Any]:
    """The dense tensors that hold a tensor's bytes: itself, those of a class that wraps others, those of a sparse one.

    What is asked for that is no op of the program's.
    """
    if unwraps(type(tensor)):
        names, _ = tensor.__tensor_flatten__()
        for part in (getattr(tensor, name) for name in names):  # a mesh may be among them
            if isinstance(part, torch.Tensor):
                yield from parts_of(part)
    elif tensor.layout is torch.sparse_coo:
        with _disable_current_modes():
            parts = (tensor._indices(), tensor._values())
        yield from parts
    else:
        yield tensor


def storage_of(tensor: Any) -> Any:
    """Of a dense tensor; opaque ones have none that has a size."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
