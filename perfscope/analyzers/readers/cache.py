"""Cache of a large trace's columns, in the user's cache folder, so that the trace opens at once the next time.

One file per trace: magic, header length, header (JSON: source, strings, what was recorded, offsets of the columns),
then the raw columns, aligned. The file is mapped, not read, so opening 500 MB of JSON again takes milliseconds. A file
that is stale, corrupt or of another version is ignored and replaced. ``PERFSCOPE_CACHE=off`` turns the cache off;
another value is the folder to use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from perfscope.model.trace import TABLES, Rows, Source, Trace
from perfscope.model.trace.columns import Array

MAGIC = b"perfscope columns 4\n"
SMALLEST = 16 << 20
"""Bytes of JSON below which parsing again is fast enough (about 0.1 s)."""
ROOM = 4 << 30
"""Bytes that all cached files may take; the least recently used are removed first."""
_ALIGN = 64
_EDGE = 1 << 16

READER_VERSION = 5
"""Version to increase when the reader fills the same columns differently."""


class _Column(msgspec.Struct, array_like=True):
    dtype: str
    count: int
    offset: int
    checksum: int


class _Header(msgspec.Struct):
    model: str
    source: Source
    strings: list[str]
    recorded: list[str]
    columns: dict[str, dict[str, _Column]]


def cache_folder() -> Path | None:
    """Return the folder of cached files; ``None`` if the cache is off."""
    chosen = os.environ.get("PERFSCOPE_CACHE", "")
    if chosen.lower() in ("off", "0", "no"):
        return None
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "perfscope" / "columns"
    except RuntimeError:  # There is no home folder.
        return None


def load(path: Path) -> Trace | None:
    """Return the cached trace of ``path`` in its current state, or ``None``."""
    folder = _cache_path(path)
    if folder is None:
        return None
    try:
        with folder.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        trace = _read(data)
        trace.check()
        os.utime(folder)
    except (OSError, ValueError, LookupError, struct.error):
        return None  # Absent, corrupt or of another version: read the trace itself.
    return trace


def save(path: Path, trace: Trace) -> None:
    """Store the columns of ``trace``. With a full disk or a read-only home, the next load parses again."""
    folder = _cache_path(path)
    if folder is None:
        return
    layout: dict[str, dict[str, _Column]] = {}
    offset = 0
    for table, rows in trace.rows.items():
        layout[table] = {}
        for name, values in rows.items():
            layout[table][name] = _Column(values.dtype.str, len(values), offset, _checksum(values))
            offset += -(-values.nbytes // _ALIGN) * _ALIGN
    header = msgspec.json.encode(
        _Header(_model_hash(), trace.source, list(trace.strings), sorted(trace.recorded), layout)
    )
    first = -(-(len(MAGIC) + 8 + len(header)) // _ALIGN) * _ALIGN
    with contextlib.suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_room(folder.parent, "*.columns", first + offset, ROOM)
        with tempfile.NamedTemporaryFile(dir=folder.parent, prefix=".new-", delete=False) as file:
            try:
                file.write(MAGIC + struct.pack("<Q", len(header)) + header)
                for table, rows in trace.rows.items():
                    for name, values in rows.items():
                        file.seek(first + layout[table][name].offset)
                        file.write(np.ascontiguousarray(values).data)
                file.truncate(first + offset)
                Path(file.name).replace(folder)
            except OSError:
                Path(file.name).unlink()
                raise


def _read(data: mmap.mmap) -> Trace:
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("not a sidecar")
    (size,) = struct.unpack_from("<Q", data, len(MAGIC))
    begin = len(MAGIC) + 8
    header = msgspec.json.decode(data[begin : begin + size], type=_Header)
    if header.model != _model_hash():
        raise ValueError("written by another version")
    first = -(-(begin + size) // _ALIGN) * _ALIGN
    rows = {
        table: Rows(
            TABLES[table],
            {name: _column(data, first, column) for name, column in columns.items()},
        )
        for table, columns in header.columns.items()
    }
    return Trace(source=header.source, strings=header.strings, rows=rows, recorded=frozenset(header.recorded))


def _column(data: mmap.mmap, first: int, column: _Column) -> Array:
    if not column.count:
        return np.empty(0, column.dtype)
    values = np.frombuffer(data, np.dtype(column.dtype), column.count, first + column.offset)
    if _checksum(values) != column.checksum:
        raise ValueError("a column is damaged")
    return values


def _checksum(values: Array) -> int:
    """Return the CRC-32 of a column's bytes; 1 s for 1 GB with zlib, a tenth of it with isal."""
    data = np.ascontiguousarray(values).data
    if not values.nbytes:
        return 0
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    return int(crc32(data.cast("B")))


def _cache_path(path: Path) -> Path | None:
    """Return the cached file's path, named by the content's identity: path, size, time, first and last bytes."""
    home = cache_folder()
    try:
        if home is None:
            return None
        state = path.stat()
        edges = edge_bytes(path, state.st_size)
    except OSError:
        return None
    identity = f"{path.resolve()}|{path}|{state.st_size}|{state.st_mtime_ns}|"
    try:
        digest = hashlib.blake2b(identity.encode() + edges, digest_size=16).hexdigest()
    except UnicodeEncodeError:  # The header cannot hold a name that is not UTF-8.
        return None
    return home / f"{digest}.columns"


def edge_bytes(path: Path, size: int) -> bytes:
    """Return the first and last 64 KiB of a file of ``size`` bytes."""
    with path.open("rb") as file:
        edges = file.read(_EDGE)
        file.seek(max(0, size - _EDGE))
        return edges + file.read(_EDGE)


def _model_hash() -> str:
    """Return a hash that changes with the declaration of any table, so that old files are not used."""
    declared = [[table.name, [[c.name, c.dtype, c.text, c.refers] for c in table.columns]] for table in TABLES.values()]
    return hashlib.blake2b(json.dumps([READER_VERSION, declared]).encode(), digest_size=8).hexdigest()


def make_room(home: Path, pattern: str, needed: int, room: int) -> None:
    """Remove the least recently used files of a name until ``needed`` more bytes fit into ``room``."""
    kept = sorted((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in home.glob(pattern))
    total = needed + sum(size for _, size, _ in kept)
    for _, size, entry in kept:
        if total <= room:
            return
        entry.unlink(missing_ok=True)
        total -= size
