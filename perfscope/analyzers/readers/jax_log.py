"""The logs of a JAX program in a run: ``events.jsonl`` and ``syncs.jsonl``. Read as a part of a run, never alone."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from perfscope.analyzers.jax_log import CompileEvent, HostRead
from perfscope.profiler.errors import DataError

MAX_BYTES = 256 << 20
"""Of a file: 20,000 records of 2,000 characters stay far below."""

EVENTS_SCHEMA = "perfscope.jax_events/1"
SYNCS_SCHEMA = "perfscope.jax_syncs/1"

Record = TypeVar("Record", CompileEvent, HostRead)


def read_events(path: Path) -> tuple[CompileEvent, ...]:
    """The compilations, in the order they ended; ``DataError`` if the file is damaged or of another schema."""
    return _read(path, EVENTS_SCHEMA, CompileEvent)


def read_syncs(path: Path) -> tuple[HostRead, ...]:
    """The reads, in the order they ended; ``DataError`` as in ``read_events``."""
    return _read(path, SYNCS_SCHEMA, HostRead)


def _read(path: Path, schema: str, kind: type[Record]) -> tuple[Record, ...]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES >> 20} MiB, not a log of a run")
        head, *lines = path.read_bytes().splitlines() or [b"{}"]
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    try:
        said = msgspec.json.decode(head, type=dict)
        if said.get("schema") != schema:
            raise DataError(f"{path}: its schema is {said.get('schema')!r}; this perfscope reads {schema!r}")
        decoder = msgspec.json.Decoder(kind)
        records = tuple(decoder.decode(line) for line in lines)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a log of a run ({error})") from error
    if said.get("records") != len(records):
        raise DataError(f"{path}: {len(records)} records where {said.get('records')!r} were written")
    return records
