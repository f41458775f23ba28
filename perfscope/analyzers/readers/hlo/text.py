"""HLO text from ``compiled.as_text()`` and ``--xla_dump_hlo_as_text``; plain, gzip or xz.

``uncompiled.py`` refuses StableHLO and MHLO (MLIR), the program that XLA receives.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from perfscope.analyzers.hlo import MAX_TEXT_BYTES, module_of
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.hlo.program import program_trace
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

FORMAT = "hlo_text"

_COMMENTS = re.compile(rb"(?:\s++|//[^\n]*+\n?)*+")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether text begins like an HLO module (``head``: first bytes, decompressed)."""
    return _begin(head).startswith(b"HloModule")


def read(path: Path) -> Trace:
    """Return the module in ``path`` as a trace with ``hlo`` only.

    ``DataError``, one line, for a file that is empty, truncated, corrupt or larger than ``MAX_TEXT_BYTES``.
    """
    shown = str(path)
    with open_bytes(path, MAX_TEXT_BYTES) as data:
        head = bytes(data[:65_536])
        if not head.strip():
            raise DataError(f"{shown}: empty file")
        raw = io.BytesIO(data) if isinstance(data, bytes) else data
        # Bytes that are not UTF-8 occur in names only, and become replacement characters.
        lines = (line.decode("utf-8", "replace") for line in iter(raw.readline, b""))
        return program_trace(shown, FORMAT, [module_of(lines, shown)])


def _begin(head: bytes) -> bytes:
    text = head.removeprefix(b"\xef\xbb\xbf")
    skipped = _COMMENTS.match(text)
    return text[skipped.end() :] if skipped else text
