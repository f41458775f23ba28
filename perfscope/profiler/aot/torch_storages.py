"""Where a tensor's bytes lie."""

from __future__ import annotations

from typing import Any

from perfscope.profiler.captures.op_graph_mode import unwraps


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
