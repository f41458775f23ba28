"""What can be captured, a written list: tool -> module. Each has ``available() -> str | None``: why not."""

from __future__ import annotations

import importlib
from types import ModuleType

CAPTURES: dict[str, str] = {
    "jax_events": "perfscope.profiler.captures.jax_events",
    "jax_hlo": "perfscope.profiler.captures.jax_hlo",
    "jax_memory": "perfscope.profiler.captures.jax_memory",
    "jax_profiler": "perfscope.profiler.captures.jax_profiler",
    "jax_sync": "perfscope.profiler.captures.jax_sync",
    "nsys": "perfscope.profiler.captures.nsys",
    "op_graph": "perfscope.profiler.captures.op_graph",
    "torch_compile": "perfscope.profiler.captures.torch_compile",
    "torch_memory": "perfscope.profiler.captures.torch_memory",
    "torch_profiler": "perfscope.profiler.captures.torch_profiler",
    "torch_tensors": "perfscope.profiler.captures.torch_tensors",
}


def load_capture(tool: str) -> ModuleType:
    """The module of a capture tool, imported now; ``KeyError`` if there is no such tool."""
    return importlib.import_module(CAPTURES[tool])


def unavailable(tool: str) -> str | None:
    """Why a tool cannot capture here, or ``None`` if it can. A tool that cannot be loaded says so."""
    try:
        reason: str | None = load_capture(tool).available()
    except Exception as error:  # this runs inside the user's program, which must go on whatever we break
        return f"{tool} cannot be loaded: {type(error).__name__}: {error}"
    return reason
