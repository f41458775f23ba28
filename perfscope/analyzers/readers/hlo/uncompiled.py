"""Programs that no compiler has optimized: recognised and refused, with the command that compiles them.

StableHLO (text and bytecode), artifacts of ``jax.export`` and of ``torch.export``. Nothing is fused, scheduled or
placed in them, so no rule has anything to look at.
"""

from __future__ import annotations

from pathlib import Path

from perfscope.model.documents.program_files import NAMES, compile_hint, program_file
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace


def sniff(path: Path, head: bytes) -> bool:
    """True for a program before it is compiled (``head``: first bytes, decompressed)."""
    return not path.is_dir() and program_file(path, head) is not None


def read(path: Path) -> Trace:
    """``DataError``, one line: what it is, and how it is compiled."""
    from perfscope.analyzers.readers.file_bytes import read_head

    kind = program_file(path, read_head(path))
    name = "a program" if kind is None else NAMES[kind]
    raise DataError(f"{path}: {name}, which no compiler has optimized yet: {compile_hint(str(path))}")
