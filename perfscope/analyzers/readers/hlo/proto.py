"""HloProto: ``*.hlo.pb`` of XLA's dumps and of the profiler, or the proto of a module alone; plain, gzip or xz."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.hlo import MAX_PROTO_BYTES, looks_like_module, looks_like_proto, module_of_proto
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.hlo.program import program_trace
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

FORMAT = "hlo_proto"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether bytes begin like a module's proto, with a name (``head``: first bytes, decompressed)."""
    return looks_like_proto(head) or looks_like_module(head)


def read(path: Path) -> Trace:
    """Return the module in ``path``, with its buffer assignment if present, as a trace with ``hlo`` only.

    ``DataError``, one line, for a file that is empty, truncated, corrupt or larger than ``MAX_PROTO_BYTES``.
    """
    shown = str(path)
    with open_bytes(path, MAX_PROTO_BYTES) as data:
        if not data[:1]:
            raise DataError(f"{shown}: empty file")
        return program_trace(shown, FORMAT, [module_of_proto(bytes(data), shown)])
