"""Registers, spills and shared memory of planned Triton kernels, from the ptxas of the triton wheel. No GPU is needed.

Inductor chooses block sizes by running candidates; here they are ours, written beside the numbers. They tell of the
shape of a kernel, not of the one that would win.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from perfscope.model.documents.torch_plan import Registers

POINTWISE = {1: {"XBLOCK": 1024}, 2: {"XBLOCK": 32, "YBLOCK": 32}, 3: {"XBLOCK": 16, "YBLOCK": 16, "ZBLOCK": 4}}
"""Block sizes by the dimensions of a kernel without a reduction: a thousand elements a block."""
ROW_BLOCK = 2048
"""Of a reduction over long rows: elements of the row that a block holds at a time, one row a block."""
POINTWISE_WARPS, REDUCTION_WARPS = 4, 8
PTXAS_SECONDS = 60

_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_numbers = itertools.count()


def registers_of(source: str, capability: tuple[int, int]) -> Registers:
    """What ptxas says of a kernel whose Triton source inductor wrote; where that fails, why, in a line."""
    architecture = f"sm_{capability[0]}{capability[1]}{'a' if capability[0] >= 9 else ''}"
    try:
        signature = signature_of(source)
        blocks, warps = blocks_of(source, signature)
        settings = f"{', '.join(f'{name}={size}' for name, size in blocks.items())}, num_warps={warps}".lstrip(", ")
    except (ValueError, SyntaxError) as error:
        return Registers(capability=architecture, blocks="-", failure=f"its source is not one that is known: {error}")
    try:
        with tempfile.TemporaryDirectory(prefix="perfscope-triton-") as folder:
            ptx, shared = _compile(Path(folder), source, signature, blocks, warps, capability)
            used, spilled = _ptxas(Path(folder), ptx, architecture)
    except Exception as error:  # a compiler may raise anything; the plan stands without this
        text = " ".join(str(error).split())[:200]
        return Registers(capability=architecture, blocks=settings, failure=f"{type(error).__name__}: {text}")
    return Registers(
        capability=architecture, blocks=settings, registers=used, spilled_bytes=spilled, shared_bytes=shared
    )


def signature_of(source: str) -> dict[str, str]:
    """Argument -> Triton type, as inductor wrote it beside the kernel."""
    for match in re.finditer(r"'signature': (\{[^{}]*\})", source):
        signature = ast.literal_eval(match[1])
        return {str(name): str(kind) for name, kind in signature.items()}
    raise ValueError("no signature")


def blocks_of(source: str, signature: dict[str, str]) -> tuple[dict[str, int], int]:
    """Sizes of the blocks a kernel asks for, and its warps."""
    asked = [name for name, kind in signature.items() if kind == "constexpr"]
    reduces = "@triton_heuristics.reduction" in source or "@triton_heuristics.persistent_reduction" in source
    if not reduces:
        sizes = POINTWISE.get(len(asked), {})
        if set(sizes) != set(asked):
            raise ValueError(f"block sizes {', '.join(asked)}")
        return dict(sizes), POINTWISE_WARPS
    blocks = {}
    for name in asked:
        if name.startswith("R"):
            hint = re.search(rf"'{name[0].lower()}{name[1] if name[1].isdigit() else ''}_?': (\d+)", source)
            blocks[name] = min(ROW_BLOCK, int(hint[1])) if hint else ROW_BLOCK
        else:
            blocks[name] = 1
    return blocks, REDUCTION_WARPS


def _compile(
    folder: Path,
    source: str,
    signature: dict[str, str],
    blocks: dict[str, int],
    warps: int,
    capability: tuple[int, int],
) -> tuple[str, int]:
    """PTX and bytes of shared memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "cache"))
    head, _, body = source.partition("@triton_heuristics.")
    kernel = body[body.index("@triton.jit") :].replace("Placeholder.KERNEL_NAME", "planned_kernel")
    kernel = re.sub(r"def (?!planned_kernel)triton_\w*\(", "def planned_kernel(", kernel, count=1)
    lines = [line for line in head.splitlines() if not line.startswith("triton_helpers.set_driver")]
    file = folder / f"kernel{next(_numbers)}.py"
    file.write_text("\n".join((*lines, kernel)))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ValueError("cannot be imported")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = triton.compile(
        ASTSource(fn=module.planned_kernel, signature=signature, constexprs=dict(blocks)),
        target=GPUTarget("cuda", capability[0] * 10 + capability[1], 32),
        options={"num_warps": warps},
    )
    return str(made.asm["ptx"]), int(made.metadata.shared)


def _ptxas(folder: Path, ptx: str, architecture: str) -> tuple[int, int]:
    """Registers of a thread, and bytes it spills."""
    import triton

    name = "ptxas-blackwell" if architecture.startswith("sm_1") else "ptxas"
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    (folder / "kernel.ptx").write_text(ptx)
    command = [str(tool), "-v", f"--gpu-name={architecture}", "kernel.ptx", "-o", "kernel.cubin"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PTXAS_SECONDS, check=False)
    used, spills = _USED.search(ended.stderr), _SPILLS.search(ended.stderr)
    if ended.returncode or used is None:
        raise ValueError(f"ptxas: {(ended.stderr.strip().splitlines() or ['no answer'])[-1][:160]}")
    return int(used[1]), 0 if spills is None else int(spills[1]) + int(spills[2])
