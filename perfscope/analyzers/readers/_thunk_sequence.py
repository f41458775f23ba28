"""The launches of a GPU program that lie beside it, where XLA dumped them.

``--xla_dump_to`` writes ``module_0012.jit_step.thunk_sequence.txt`` beside
``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``.
"""

from __future__ import annotations

import io
from pathlib import Path

from perfscope.analyzers.hlo.thunks import Thunks, read_thunks
from perfscope.analyzers.readers._bytes import open_bytes
from perfscope.analyzers.readers._fusion_dump import dump_beside
from perfscope.profiler.errors import DataError

SUFFIX = ".thunk_sequence.txt"

MAX_THUNK_BYTES = 256 << 20
"""A model with 700 kernels takes 80 kB."""


def thunks_beside(path: Path) -> tuple[Thunks | None, str | None]:
    """The launches, and a note where the file is there and cannot be read or holds none."""
    dump = dump_beside(path, SUFFIX)
    if dump is None:
        return None, None
    try:
        with open_bytes(dump, MAX_THUNK_BYTES) as data:
            raw = io.BytesIO(data) if isinstance(data, bytes) else data
            found = read_thunks(line.decode("utf-8", "replace") for line in iter(raw.readline, b""))
    except DataError as error:
        return None, f"the launches are taken from the schedule: {error}"
    if not found.thunks:
        return None, f"the launches are taken from the schedule: {dump}: no thunk is in it"
    return found, None
