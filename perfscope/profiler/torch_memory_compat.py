"""All that is private in torch and that the capture of CUDA memory snapshots stands on. Missing parts say so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]


def in_use() -> bool:
    """Whether this process has begun to use CUDA through torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def record_history(entries: int) -> Undo | str:
    """Have the allocator keep its last ``entries`` events with Python stacks. The undo, or why that cannot be.

    Where the program records a history of its own, that one is left alone, and is what a snapshot shows.
    """
    memory: Any = sys.modules.get("torch.cuda.memory")
    record = getattr(memory, "_record_memory_history", None)
    if record is None or getattr(memory, "_snapshot", None) is None:
        return "this torch has no memory snapshots (torch 2.1 and later have)"
    runs = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", None)
    if runs is not None and runs():
        return lambda: None
    try:
        record("all", context="alloc", stacks="python", max_entries=entries)
    except (TypeError, ValueError) as error:
        return f"this torch records its memory history in a way that is not known here ({error})"
    return lambda: record(None)


def snapshot() -> dict[str, Any]:
    """What the allocator holds, and its history. Only host state is read: no device is waited for."""
    memory: Any = sys.modules["torch.cuda.memory"]
    found: dict[str, Any] = memory._snapshot()
    return found


def watch_out_of_memory(called: Callable[[], None]) -> str | None:
    """Have ``called()`` called on the thread whose allocation failed, before the error is raised. It stays.

    None, or why that cannot be.
    """
    torch: Any = sys.modules["torch"]
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None:
        return "this torch does not tell of allocations that fail (torch 2.0 and later do)"
    attach(lambda device, wanted, total, free: called())
    return None
