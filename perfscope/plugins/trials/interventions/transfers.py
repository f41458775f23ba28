"""Copies between host and GPU in PyTorch: non-blocking copies, and values read one step late."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention, needs_cuda
from perfscope.profiler.patching import replace

PERFSCOPE = str(Path(__file__).parents[2])


def _wrap_inherited(name: str, make: Callable[[Any], Any]) -> None:
    """`wrap` for a method of ``torch.Tensor`` inherited from its base class."""
    import torch

    original = getattr(torch.Tensor, name)
    replace(torch.Tensor, name, functools.wraps(original)(make(original)))


def waits_for_copy(tensor: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether ``tensor.to(*arguments, **named)`` copies pinned memory to a GPU without ``non_blocking``."""
    import torch

    given = named.get("device", named.get("other", arguments[0] if arguments else None))
    if isinstance(given, torch.Tensor):
        given = given.device
    if not isinstance(given, str | int | torch.device) or "non_blocking" in named:
        return False
    if any(isinstance(argument, bool) for argument in arguments):
        return False
    return torch.device(given).type == "cuda" and tensor.device.type == "cpu" and bool(tensor.is_pinned())


def _non_blocking(application: Application) -> None:
    """Make ``to`` and ``cuda`` of a tensor in pinned memory return before the copy; the stream keeps the order."""

    def make_to(original: Any) -> Any:
        def to(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if waits_for_copy(tensor, arguments, named):
                application.changed("Tensor.to(device, non_blocking=True) of pinned memory")
                named["non_blocking"] = True
            return original(tensor, *arguments, **named)

        return to

    def make_cuda(original: Any) -> Any:
        def cuda(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if len(arguments) < 2 and waits_for_copy(tensor, ("cuda",), named):
                application.changed("Tensor.cuda(non_blocking=True) of pinned memory")
                named["non_blocking"] = True
            return original(tensor, *arguments, **named)

        return cuda

    _wrap_inherited("to", make_to)
    _wrap_inherited("cuda", make_cuda)


def on_gpu(tensor: Any) -> bool:
    """Whether reading the tensor waits for a GPU."""
    return bool(tensor.is_cuda)


def copy_to_host(tensor: Any) -> tuple[Any, Callable[[], None]]:
    """The copy of a tensor in pinned memory, and the event to wait for."""
    import torch

    copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copied.copy_(tensor.detach(), non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copied, event.synchronize


def _defer(application: Application) -> None:
    """Make ``item()`` and ``float()`` return the value that the same line requested the previous time."""
    import torch

    others = (str(Path(torch.__file__).parent), PERFSCOPE)
    pending: dict[tuple[str, int], tuple[Any, Callable[[], None]]] = {}

    def make(original: Any) -> Any:
        def read(tensor: Any) -> Any:
            caller = sys._getframe(1)
            line = caller.f_code.co_filename, caller.f_lineno
            if not on_gpu(tensor) or line[0].startswith(others):
                return original(tensor)
            before = pending.get(line)
            pending[line] = copy_to_host(tensor)
            if before is None:
                return original(tensor)
            copied, wait = before
            wait()
            application.changed(f"{Path(line[0]).name}:{line[1]} reads the value that it requested one step before")
            return original(copied)

        return read

    for name in ("item", "__float__"):
        _wrap_inherited(name, make)


NON_BLOCKING = Intervention(
    name="non-blocking",
    title="copies to the GPU that are not waited for",
    family="copies",
    framework="torch",
    answers=("exposed_copy", "host_sync", "pageable_copy"),
    may_change="Nothing, unless the program writes into pinned memory again before it is copied.",
    code="batch = batch.to(device, non_blocking=True)  # from pinned memory",
    applies=needs_cuda,
    apply=_non_blocking,
)
DEFER_READ = Intervention(
    name="defer-read",
    title="values read by the host a step later",
    family="reads",
    framework="torch",
    answers=("host_sync",),
    may_change="A line that reads a value gets that of its last read: logs and decisions come a step late.",
    code="losses.append(loss.detach())  # in each step\nprint(torch.stack(losses).tolist())  # each hundredth",
    applies=needs_cuda,
    apply=_defer,
)
