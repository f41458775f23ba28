"""HloProto: ``*.hlo.pb`` of XLA's dumps and of the profiler, or a module's proto alone, plain, gzip or xz."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.hlo.module import MAX_PROTO_BYTES
from perfscope.analyzers.hlo.parse.proto import module_of_proto
from perfscope.analyzers.hlo.proto_wire import looks_like_module, looks_like_proto
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.hlo.program import program_trace
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

FORMAT = "hlo_proto"


def sniff(path: Path, head: bytes) -> bool:
    """True for bytes that begin as a module's proto does: with a name (``head``: first bytes, decompressed)."""
    return looks_like_proto(head) or looks_like_module(head)


def read(path: Path) -> Trace:
    """The module in ``path``, with its buffer assignment where there is one, as a trace with nothing but ``hlo``.

    ``DataError``, one line, for a file that is empty, cut off, corrupt or larger than ``MAX_PROTO_BYTES``.
    """
    shown = str(path)
    with open_bytes(path, MAX_PROTO_BYTES) as data:
        if not data[:1]:
            raise DataError(f"{shown}: empty file")
        return program_trace(shown, FORMAT, [module_of_proto(bytes(data), shown)])
