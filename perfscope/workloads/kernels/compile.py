"""Compile every Triton kernel of the workloads for a GPU that is absent, with Triton's own compiler.

    python -m perfscope.workloads.kernels.compile h100 mi300x

Prints, for each kernel, the bytes of shared memory of a block and the size of its machine code.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from perfscope.workloads.kernels import flash, grouped, launch, loss, norm, paged, quantized, rotary, selective

TARGETS = {"h100": ("cuda", 90, 32), "b200": ("cuda", 100, 32), "mi300x": ("hip", "gfx942", 64)}
"""Backend, architecture and threads of a warp, as Triton names them."""


class AbsentDevice:
    """The part of a driver that Triton needs to compile a kernel without launching it."""

    def __init__(self, target: Any, number: int) -> None:
        self._target, self._number = target, number

    def get_current_target(self) -> Any:
        """The GPU to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """The number of the device, by which Triton keeps compiled kernels."""
        return self._number

    def get_current_stream(self, device: int) -> int:
        """No stream is used."""
        return 0


@contextmanager
def compiling(name: str) -> Iterator[list[Any]]:
    """Kernels launched inside are compiled for the target, and collected."""
    import triton
    from triton.backends.compiler import GPUTarget

    triton.runtime.driver.set_active(AbsentDevice(GPUTarget(*TARGETS[name]), list(TARGETS).index(name)))
    launch.compiled = []
    try:
        yield launch.compiled
    finally:
        launch.compiled = None


def attention() -> None:
    """Forward and backward: causal, and with a window over shared keys."""
    for groups, window in ((16, 0), (4, 512)):
        q = torch.empty(2, 16, 2048, 128, dtype=torch.bfloat16, device="meta")
        k, v = q.new_empty(2, 2, groups, 2048, 128)
        o, lse = flash.run(q, k, v, True, window)
        flash.run_backward(torch.empty_like(q), q, k, v, o, lse, True, window)


def layers() -> None:
    """The norm, the rotation and the loss of a decoder."""
    x, weight, table = (_meta(4096, 2048) for _ in range(3))
    norm.run_backward(x, *norm.run(x, weight[0])[:1], weight[0], _meta(4096, dtype=torch.float32))
    heads, angles = _meta(2, 2048, 16, 128), _meta(2048, 64, dtype=torch.float32)
    rotary.run(heads, angles, angles)
    target = _meta(4096, dtype=torch.int64)
    _, lse = loss.run(x, table, target)
    loss.run_backward(_meta(dtype=torch.float32), x, table, target, lse)


def experts() -> None:
    """The product of a mixture of experts and its gradient."""
    x, weight, ends = _meta(4096, 1024), _meta(16, 1024, 2048), _meta(16, dtype=torch.int32)
    grouped.run_gradient(x, grouped.run(x, weight, ends), ends)


def states() -> None:
    """The scan of a state space model and its gradient."""
    a, read = _meta(8, 512, 1024, 16), _meta(8, 512, 16)
    y, starts = selective.run(a, a, read)
    selective.run_backward(y, a, a, read, starts)


def decoding() -> None:
    """One new position per sequence over pages, with shared keys."""
    pages = _meta(4096, 16, 8, 128)
    paged.run(_meta(64, 32, 128), pages, pages, _meta(64, 64, dtype=torch.int64), _meta(64, dtype=torch.int32))


def inference() -> None:
    """Products of quantized factors."""
    scale = _meta(2048, dtype=torch.float32)
    for dtype in (torch.int8, torch.float8_e4m3fn):
        factor = _meta(2048, 2048, dtype=dtype)
        quantized.run(factor, scale, factor, scale)
    whole = _meta(2048, 1024, dtype=torch.uint8)
    quantized.run_int4(_meta(2048, 2048), whole, _meta(2048, 16, dtype=torch.float32))


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


PROGRAMS: dict[str, Callable[[], None]] = {
    "attention": attention,
    "layers": layers,
    "experts": experts,
    "states": states,
    "decoding": decoding,
    "inference": inference,
}


def compile_kernels(name: str) -> list[tuple[str, int, int]]:
    """Compile all kernels for a target: (name, bytes of shared memory, bytes of machine code)."""
    binary = "hsaco" if TARGETS[name][0] == "hip" else "cubin"
    with compiling(name) as compiled:
        for program in PROGRAMS.values():
            program()
    return [(kernel.metadata.name, int(kernel.metadata.shared), len(kernel.asm[binary])) for kernel in compiled]


def main(argv: Sequence[str] | None = None) -> None:
    """Compile for the targets of the command line and print a row per kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="+", choices=TARGETS)
    targets = parser.parse_args(argv).target
    if importlib.util.find_spec("triton") is None:
        parser.error("Triton's compiler is not installed: pip install triton")
    for name in targets:
        for kernel, shared, code in compile_kernels(name):
            print(f"{name:8} {kernel:28} {shared:8,} B shared {code:9,} B code")


if __name__ == "__main__":
    main()
