"""What the child process is asked: plain data in a JSON file, so that it needs nothing of the command's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from perfscope.profiler.errors import DataError

Framework = Literal["jax", "torch"]
Part = Literal["", "trial", "pretended"]
"""Of a child: all of it, or what a child of its own does of ``pretend_device`` (``torch_pretend_run``)."""


class TargetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine to compile for, resolved: nothing here has to be looked up in a table."""

    asked: str
    """As the user wrote it."""
    device: str
    """Name of one device in our tables."""
    platform: Literal["gpu", "tpu"]
    vendor: str
    """``NVIDIA``, ``AMD`` or ``Google``."""
    count: int
    topology: str
    """For XLA: ``partitions x hosts x devices`` of GPUs (``1x1x8``), chips of a TPU slice (``2x4``)."""
    memory_bytes: int | None
    """Of one device, as it was asked for."""
    description: dict[str, Any]
    """All numbers that are used, so that a report needs no table."""
    config: str | None = None
    """XLA's target config of the GPU as text; TPU compilers bring their own."""
    generation: str | None = None
    """What libtpu calls the TPU: ``v5e``."""
    host_shape: tuple[int, ...] | None = None
    """TPUs: chips of one host along x, y and z; None for libtpu's own, 2 x 2."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where it ends."""

    seconds: float
    """For the whole command."""
    memory_bytes: int
    """Resident memory of the child and what it started."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to compile or plan, and for what."""

    framework: Framework
    arguments: tuple[str, ...]
    """Script or module, and everything behind it."""
    module: bool
    target: TargetRequest
    limits: Limits
    folder: str = ""
    """The run folder, absolute; the child writes below ``programs`` and ``plans`` only. Set by `compile_program`."""
    functions: tuple[str, ...] = ()
    """Only these: ``step``, ``train.step`` or ``train.py:step``; empty for all that is jitted."""
    until_exit: bool = False
    """Let the program run to its end, however often it calls the same."""
    checkpoint: str | None = None
    """JAX: the policy that the program's layers get (`checkpoint_asked.py`); None: what the program says."""
    keep_ptx: bool = False
    registers: bool = False
    """PyTorch on NVIDIA: registers and spills of the planned Triton kernels."""
    pretend_device: bool = False
    """PyTorch on NVIDIA: plan over tensors that claim to be on the target, where the installed torch can be made to."""
    part: Part = ""
    plugins: tuple[str, ...] = ()
    """Folders that hold compiler plugins, in order; found by the parent."""
    skipped: tuple[int, ...] = ()
    """Programs that a child before this one left behind, compiled or not: numbers in the order they were seen."""
    exported: str | None = None
    """A file with a program that was exported beforehand (`compile_for`), instead of a program to run."""


def dump(request: Request) -> bytes:
    """A request as UTF-8 JSON."""
    return msgspec.json.encode(request)


def load(path: Path) -> Request:
    """The request in a file; ``DataError`` where it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Request)
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a request to compile ({error})") from error
