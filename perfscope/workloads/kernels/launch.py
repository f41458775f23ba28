"""Launches of Triton kernels: for real, in the interpreter, or only compiled for a device that is absent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

compiled: list[Any] | None = None
"""Compiled kernels, collected in place of launches; None: kernels are launched (`compile.py`)."""


def in_triton(tensor: torch.Tensor) -> bool:
    """Whether kernels on this tensor run in Triton: on a GPU, in the interpreter, or compiled only."""
    return tensor.is_cuda or compiled is not None or os.environ.get("TRITON_INTERPRET") == "1"


def launch(kernel: Any, grid: Sequence[int], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel on a grid. ``constants``: its compile-time arguments, ``num_warps``, ``num_stages``."""
    if compiled is None:
        kernel[tuple(grid)](*arguments, **constants)
    else:
        compiled.append(kernel.warmup(*arguments, grid=tuple(grid), **constants))


def precision_of(tensor: torch.Tensor) -> str:
    """Precision of float32 products, as the program sets it: ``tf32`` or ``ieee``."""
    return "ieee" if tensor.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"
