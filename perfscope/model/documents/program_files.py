"""Files with a program before a compiler has optimized it, recognised by their first bytes, and advice on them."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Literal

ProgramFile = Literal["stablehlo", "jax_export", "torch_export", "onnx"]

NAMES: dict[ProgramFile, str] = {
    "stablehlo": "StableHLO (MLIR)",
    "jax_export": "an artifact of jax.export",
    "torch_export": "a program of torch.export",
    "onnx": "an ONNX model",
}
"""Kind -> its name for people."""

HEAD_BYTES = 65_536
MAX_BYTES = 2 << 30
"""Largest file: protocol buffers and flatbuffers have no larger ones."""

_BYTECODE = b"ML\xefR"
"""How MLIR's bytecode begins."""
_COMMENTS = re.compile(rb"(?:\s++|//[^\n]*+\n?)*+")
_MLIR = re.compile(rb"#[a-z_]\w*\s*=\s*|#loc\b|(?:builtin\.)?module\s*(?:@\S+\s*)?(?:attributes\s*)?\{|func\.func\b")
_DIALECT = re.compile(rb"\b(?:stablehlo|mhlo|chlo|vhlo|sdy)\b|func\.func\b")
_ONNX = b"\x08"
"""Version of the format, the first field of the protocol buffer."""
_ZIP = b"PK\x03\x04"
_TORCH_MEMBERS = re.compile(r"(?:^|/)(?:models/[^/]+\.json|serialized_exported_program\.json)$")
_LARGEST_TABLE = 1 << 16
"""Largest offset of the root table of a flatbuffer of jax.export."""


def program_file(path: Path, head: bytes) -> ProgramFile | None:
    """The kind of program in ``path``, None for other files. ``head``: its first bytes, decompressed."""
    if head.startswith(_BYTECODE) or _is_mlir(head):
        return "stablehlo"
    if head.startswith(_ZIP):
        return "torch_export" if _is_torch_export(path) else None
    if path.suffix.lower() == ".onnx" and head.startswith(_ONNX):
        return "onnx"
    root = int.from_bytes(head[:4], "little")
    # a flatbuffer has no magic: its first number is the offset of its root table, which holds the module as bytecode
    if 4 <= root < min(_LARGEST_TABLE, len(head)) and _BYTECODE + b"\rStableHLO" in head:
        return "jax_export"
    return None


def compile_hint(path: str) -> str:
    """Advice for a file with a program that is not compiled yet."""
    return f"`perfscope compile {path} --target h100` compiles it with the target's own compiler and judges the result"


def _is_mlir(head: bytes) -> bool:
    text = head.removeprefix(b"\xef\xbb\xbf")
    skipped = _COMMENTS.match(text)
    begin = text[skipped.end() :] if skipped else text
    return _MLIR.match(begin) is not None and _DIALECT.search(head) is not None


def _is_torch_export(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(_TORCH_MEMBERS.search(name) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False
