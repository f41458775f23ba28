"""One call of a Pallas kernel on any platform."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

GPU_PARAMETERS: Any = getattr(triton, "CompilerParams", None) or triton.TritonCompilerParams  # its name in jax 0.6


def launch(
    kernel: Callable[..., None],
    operands: Sequence[jax.Array],
    *,
    name: str,
    grid: tuple[int, ...],
    in_specs: Sequence[Any],
    out_specs: Any,
    out_shape: Any,
    flops: int,
    transcendentals: int = 0,
    moved: int | None = None,
    warps: int = 4,
    stages: int = 2,
) -> Any:
    """The results of a kernel: Triton for GPUs, Mosaic for TPUs, interpreted on the CPU.

    ``moved``: bytes through device memory; ``None``: operands and results once.
    """
    if moved is None:
        moved = sum(size_of(array) for array in (*operands, *jax.tree.leaves(out_shape)))
    call = functools.partial(
        pl.pallas_call,
        kernel,
        grid=grid,
        in_specs=list(in_specs),
        out_specs=out_specs,
        out_shape=out_shape,
        cost_estimate=pl.CostEstimate(flops=flops, transcendentals=transcendentals, bytes_accessed=moved),
        name=name,
    )
    on_gpu = call(compiler_params=GPU_PARAMETERS(num_warps=warps, num_stages=stages))
    return jax.lax.platform_dependent(*operands, cpu=call(interpret=True), cuda=on_gpu, rocm=on_gpu, default=call())


def size_of(array: Any) -> int:
    """Bytes of an array or a shape."""
    return int(math.prod(array.shape) * array.dtype.itemsize)


def padded(x: jax.Array, axis: int, block: int) -> jax.Array:
    """The array with zeros after its end, up to a multiple of ``block`` along ``axis``."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % block)
    return jax.numpy.pad(x, widths)
