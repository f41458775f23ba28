"""All that is private in torch and that the capture of torch.compile stands on. Missing parts say so, once each.

Only what is imported already is touched: a program that compiles nothing must not load the compiler for us.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Undo = Callable[[], None]

TRACE_LOGGER = "torch.__trace"
"""The logger of torch's structured trace; ``TORCH_TRACE=DIR`` gives it a handler that writes files."""

COMPILE_WORKER = ("torch", "_inductor", "compile_worker", "__main__.py")
"""Helpers that inductor starts run this file: they compile for another process and are none of the program's."""

SETTINGS = {
    "provenance": ("trace", "provenance_tracking_level", "INDUCTOR_PROVENANCE"),
    "cpp_kernel_names": ("cpp", "enable_kernel_profile", "TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE"),
}
"""Our name of a setting of inductor: the group it is in, its name there, and the variable that sets it."""


def in_compile_worker() -> bool:
    """Whether this process is one of inductor's own helpers."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return file is not None and Path(file).parts[-len(COMPILE_WORKER) :] == COMPILE_WORKER


def trace_formatter() -> logging.Formatter | str:
    """What makes lines of the structured trace out of records, or why there is none."""
    module: Any = sys.modules.get("torch._logging._internal")
    kind = getattr(module, "TorchLogsFormatter", None)
    if kind is None or getattr(module, "trace_log", None) is not logging.getLogger(TRACE_LOGGER):
        return "this torch has no structured trace of torch.compile (torch 2.3 and later have)"
    try:
        formatter: logging.Formatter = kind(trace=True)
    except TypeError as error:
        return f"this torch's structured trace is not one that is known here ({error})"
    return formatter


def add_trace_handler(handler: logging.Handler) -> Undo:
    """Have ``handler`` get every record of the structured trace, before the others do.

    Torch's own handler takes itself out with the first record unless TORCH_TRACE is set; whoever stands behind
    it at that moment is passed over. Having a handler is what makes torch put records together at all.
    """
    logger = logging.getLogger(TRACE_LOGGER)
    logger.handlers[:0] = [handler]
    return lambda: logger.removeHandler(handler)


def torch_version() -> str:
    """As the structured trace gives it."""
    torch: Any = sys.modules["torch"]
    return str(torch.__version__)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, out of the compiler's sight also where compiled code calls it. Loads dynamo."""
    import torch

    hidden: Callable[..., Any] = torch.compiler.disable(function)
    return hidden


def has_compiled() -> bool:
    """Whether dynamo looked at any frame in this process."""
    module: Any = sys.modules.get("torch._dynamo.utils")
    counters = getattr(module, "counters", None)
    return bool(counters and counters.get("frames"))


def compile_id() -> str | None:
    """Of the compilation that runs: ``'0/1'``."""
    guards: Any = sys.modules.get("torch._guards")
    found = guards.CompileContext.current_compile_id() if guards is not None else None
    return None if found is None else str(found)


def inductor_loaded() -> bool:
    """Whether inductor is imported, whole, so that what is read and hooked of it is there."""
    module = sys.modules.get("torch._inductor.compile_fx")
    spec = getattr(module, "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def inductor_group(name: str) -> Any:
    """A group of inductor's settings, or ``None``."""
    return getattr(sys.modules.get("torch._inductor.config"), name, None)


def direction() -> str | None:
    """Of the graph that inductor compiles now: ``forward``, ``backward`` or ``inference``."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None:
        return None
    graph = virtualized.V.graph
    if getattr(graph, "is_backward", False):
        return "backward"
    inference = getattr(graph, "is_inference", None)
    return None if inference is None else "inference" if inference else "forward"


def hook_scheduler(refused: Callable[[Any, Any, str, tuple[Any, ...]], None], decided: Callable[[Any], None]) -> Any:
    """Listen to inductor's scheduler. The undo, or a sentence that says why that cannot be.

    ``refused(first, second, reason, arguments)``: two scheduler nodes were not fused, ``reason % arguments`` says
    why. ``decided(scheduler)``: nothing will be fused any more in this graph.
    """
    from torch._inductor import scheduler

    why: Any = getattr(scheduler, "WhyNoFuse", None)
    holder: Any = getattr(scheduler, "Scheduler", None)
    init: Any = None if why is None else vars(why).get("__init__")
    call: Any = None if why is None else vars(why).get("__call__")
    codegen: Any = None if holder is None else vars(holder).get("codegen")
    if init is None or call is None or codegen is None:
        return "this torch's inductor does not say what it refuses to fuse (torch 2.3 and later do)"
    # By the id of the object that will give the reason: it has slots and no room for more. One that is gone is
    # replaced by the next with its id, so there are never more than live at a time.
    pairs: dict[int, tuple[Any, Any]] = {}

    def made(reasons: Any, first: Any, second: Any) -> None:
        init(reasons, first, second)
        pairs[id(reasons)] = (first, second)

    def said(reasons: Any, reason: str, *arguments: Any) -> Any:
        pair = pairs.get(id(reasons))
        if pair is not None:
            refused(*pair, reason, arguments)
        return call(reasons, reason, *arguments)

    def generate(chosen: Any, *arguments: Any, **named: Any) -> Any:
        pairs.clear()
        decided(chosen)
        return codegen(chosen, *arguments, **named)

    ours = ((why, "__init__", made, init), (why, "__call__", said, call), (holder, "codegen", generate, codegen))
    for owner, name, function, _ in ours:
        setattr(owner, name, function)

    def undo() -> None:
        for owner, name, function, original in ours:
            if owner.__dict__.get(name) is function:
                setattr(owner, name, original)

    return undo


# All that is private in torch and that the capture of CUDA memory snapshots stands on. Missing parts say so.


def cuda_in_use() -> bool:
    """Whether this process has begun to use CUDA through torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def record_memory_history(entries: int) -> Undo | str:
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


def memory_snapshot() -> dict[str, Any]:
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
