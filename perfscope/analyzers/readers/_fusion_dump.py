"""The dump of XLA's fusion decisions that lies beside a program, if one does.

``--xla_dump_hlo_pass_re=priority-fusion`` writes ``module_0012.jit_step.priority_fusion_dump.txt`` beside
``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``.
"""

from __future__ import annotations

import io
from pathlib import Path

from perfscope.analyzers.hlo.fusion_dump import refusals
from perfscope.analyzers.readers._bytes import open_bytes
from perfscope.profiler.errors import DataError

SUFFIX = ".priority_fusion_dump.txt"

MAX_DUMP_BYTES = 256 << 20
"""The dump of a model with 700 kernels takes 1 MB."""


def refusals_beside(path: Path) -> tuple[dict[str, str], str | None]:
    """Kernel -> XLA's reason, and a note where a dump is there and cannot be read."""
    dump = dump_beside(path, SUFFIX)
    if dump is None:
        return {}, None
    try:
        with open_bytes(dump, MAX_DUMP_BYTES) as data:
            raw = io.BytesIO(data) if isinstance(data, bytes) else data
            return refusals(line.decode("utf-8", "replace") for line in iter(raw.readline, b"")), None
    except DataError as error:
        return {}, f"XLA's reasons are left out: {error}"


def dump_beside(path: Path, ending: str) -> Path | None:
    """The dump with an ending whose name shares the longest beginning with that of the program."""
    parts = path.name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        for suffix in (ending, f"{ending}.gz", f"{ending}.xz"):
            found = path.with_name(".".join(parts[:count]) + suffix)
            if found != path and found.is_file():
                return found
    return None
