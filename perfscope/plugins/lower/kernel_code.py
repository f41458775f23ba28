"""Code of single kernels next to a program: LLVM IR files of XLA's CPU backend, entries of PTX."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from perfscope.analyzers.readers import open_bytes
from perfscope.plugins.lower.program import ProgramStage, StageOp

KERNEL_CODE = "kernel code"
KERNEL_SOURCE = "kernel source"
ENDS = (".ptx", ".ptx.xz", ".ptx.gz", ".ir-with-opt.ll")
MOST_BYTES = 256 << 20

_ENTRY = re.compile(rb"^\.visible \.entry (\w+)\(", re.MULTILINE)
_MODULE = re.compile(r"\.(?:__compute_module_)?(?P<kernel>[\w.-]+?)(?:_kernel_module)?\.ir-with-opt\.ll$")


def code_files(folder: Path, stem: str) -> list[Path]:
    """Files with code of the program whose files begin with ``stem``."""
    return sorted(file for file in folder.iterdir() if file.name.startswith(f"{stem}.") and file.name.endswith(ENDS))


def kernel_code(stage: ProgramStage, kernels: Collection[str]) -> list[StageOp]:
    """Where the code of each of these kernels is: a file, and its line in PTX."""
    first = Path(stage.file)
    found = []
    wanted = {re.sub(r"[.-]", "_", kernel): kernel for kernel in kernels}
    for file in code_files(first.parent, stage.stem):
        if not file.name.endswith(".ll"):
            with open_bytes(file, MOST_BYTES) as data:
                text = bytes(data)
            for entry in _ENTRY.finditer(text):
                name = entry[1].decode()
                if name in wanted:
                    line = text.count(b"\n", 0, entry.start()) + 1
                    found.append(StageOp(name=wanted[name], op="PTX", inside=wanted[name], text=f"{file}:{line}"))
        elif (match := _MODULE.search(file.name.removeprefix(stage.stem))) is not None and match["kernel"] in kernels:
            found.append(StageOp(name=match["kernel"], op="LLVM IR", inside=match["kernel"], text=str(file)))
    return found
