"""One call of a Pallas kernel on any platform."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu, triton

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
    scalars: int = 0,
    warps: int = 4,
    stages: int = 2,
) -> Any:
    """The results of a kernel: Triton for GPUs, Mosaic for TPUs, interpreted on the CPU.

    ``moved``: bytes through device memory; ``None``: operands and results once. ``scalars``: how many of the first
    operands hold integers that are read one at a time; a TPU has them in scalar memory.
    """
    if moved is None:
        moved = sum(size_of(array) for array in (*operands, *jax.tree.leaves(out_shape)))
    call = functools.partial(
        pl.pallas_call,
        kernel,
        grid=grid,
        out_specs=out_specs,
        out_shape=out_shape,
        cost_estimate=pl.CostEstimate(flops=flops, transcendentals=transcendentals, bytes_accessed=moved),
        name=name,
    )
    # AMD's GPUs have a quarter of the memory on chip, too little for several stages.
    on_cuda, on_rocm = (
        call(in_specs=list(in_specs), compiler_params=GPU_PARAMETERS(num_warps=warps, num_stages=count))
        for count in (stages, 1)
    )
    in_scalar_memory = [pl.BlockSpec(memory_space=tpu.SMEM)] * scalars
    return jax.lax.platform_dependent(
        *operands,
        cpu=call(in_specs=list(in_specs), interpret=True),
        cuda=on_cuda,
        rocm=on_rocm,
        default=call(in_specs=[*in_scalar_memory, *in_specs[scalars:]]),
    )


def size_of(array: Any) -> int:
    """Bytes of an array or a shape."""
    return int(math.prod(array.shape) * array.dtype.itemsize)


def padded(x: jax.Array, axis: int, block: int) -> jax.Array:
    """The array with zeros after its end, up to a multiple of ``block`` along ``axis``."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % block)
    return jax.numpy.pad(x, widths)
