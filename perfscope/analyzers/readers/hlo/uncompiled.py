"""Programs before compilation: recognised and refused, with the command that compiles them.

StableHLO (text and bytecode), artifacts of ``jax.export`` and of ``torch.export``. They are not fused, scheduled or
allocated yet, so rules have nothing to judge.
"""

from __future__ import annotations

from pathlib import Path

from perfscope.model.documents.program_files import NAMES, compile_hint, program_file
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is a program before compilation (``head``: first bytes, decompressed)."""
    return not path.is_dir() and program_file(path, head) is not None


def read(path: Path) -> Trace:
    """Raise ``DataError`` with one line: the kind of program, and the command that compiles it."""
    from perfscope.analyzers.readers.file_bytes import read_head

    kind = program_file(path, read_head(path))
    name = "a program" if kind is None else NAMES[kind]
    raise DataError(f"{path}: {name}, which no compiler has optimized yet: {compile_hint(str(path))}")
