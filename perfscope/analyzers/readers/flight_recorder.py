"""NCCL flight recorder: the dump of the last collectives that ``torch.distributed`` writes when one of them times out.

One file per rank, ``nccl_trace_rank_3`` by default, with the rank at the end of the name: a pickle, or JSON with the
same keys, or a tar of such files.

```
{"version": "2.9", "nccl_version": "2.21.5",
 "pg_config": {"35": {"name": "35", "desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": "[0, 1]"}, ...},
 "pg_status": {"5": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 7}},
 "entries": [{"pg_id": 5, "process_group": ["35", "TENSOR_MODEL_PARALLEL_GROUP"], "collective_seq_id": 8,
   "p2p_seq_id": 0, "is_p2p": false, "profiling_name": "nccl:all_to_all", "state": "scheduled", "retired": false,
   "input_sizes": [[4096, 5120]], "input_dtypes": ["BFloat16"], "time_created_ns": N, "timeout_ms": 600000,
   "frames": [{"name": "forward", "filename": "model.py", "line": 7}]}]}
```

``pickles.py`` reads pickles without running code.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfscope.analyzers.readers.file_bytes import FILE_NAME, open_bytes
from perfscope.analyzers.readers.pickles import load
from perfscope.model.collectives import operation_of
from perfscope.model.documents.flight_recorder import STATES, FlightRecord, Progress, RecordedCall, RecordedGroup
from perfscope.model.errors import DataError
from perfscope.model.frames import Owner, owner_of
from perfscope.model.trace import Trace, TraceBuilder

FORMAT = "flight_recorder"

LARGEST = 256 << 20
"""Maximum bytes of one dump; 20,000 entries with stacks take about 50 MB."""
LARGEST_TAR = 4 << 30
"""Maximum bytes of all files of a tar, enough for a thousand ranks."""
MOST_FILES = 20_000

_DOCUMENT = "dump of a flight recorder"

DEFAULT_GROUP = "default_pg"
"""Name that torch gives the group of the whole world."""

_KEYS = (b"pg_config", b"pg_status", b"nccl_version", b"collective_seq_id")
_KINETO = (b'"schemaVersion"', b'"traceEvents"', b'"distributedInfo"')
"""Keys of torch.profiler's traces, which contain NCCL and groups too."""
_RANK_IN_NAME = re.compile(r"(\d{1,6})(?:\.(?:json|pkl|pickle|bin|gz))*$")
_PEERS = re.compile(r"(?:send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")
_TAR_MAGIC = slice(257, 262)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is a pickle or JSON with the recorder's keys, or a tar that begins with such files."""
    if not any(key in head for key in _KEYS):
        return False
    if head[_TAR_MAGIC] == b"ustar":
        return True
    if head[:1] == b"\x80":
        return b"entries" in head or b"pg_config" in head
    return head.lstrip(b" \t\r\n").startswith(b"{") and not any(key in head for key in _KINETO)


def read(path: Path) -> Trace | list[Trace]:
    """Return the trace of one rank, or the traces of a tar by rank.

    ``DataError``, one line, for a file that is corrupt, too large, or needs a class.
    """
    with open_bytes(path, LARGEST_TAR) as data:
        if data[_TAR_MAGIC] == b"ustar":
            return _of_tar(path, io.BytesIO(data) if isinstance(data, bytes) else data)
        result = _parsed(data[: LARGEST + 1], str(path))
    return _trace(result, str(path), path.name)


def _of_tar(path: Path, stream: Any) -> list[Trace]:
    traces = []
    total = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for count, member in enumerate(archive):
                total += member.size
                if count >= MOST_FILES or total > LARGEST_TAR:
                    raise DataError(f"{path}: too large for dumps of a flight recorder")
                opened = archive.extractfile(member) if member.isfile() and member.size <= LARGEST else None
                if opened is None:
                    continue
                data = opened.read()
                if any(key in data[:65536] for key in _KEYS):
                    shown = f"{path}:{member.name}"
                    traces.append(_trace(_parsed(data, shown), shown, Path(member.name).name))
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{path}: corrupt tar: {error}") from error
    if not traces:
        raise DataError(f"{path}: holds no dump of a flight recorder")
    return sorted(traces, key=lambda trace: (trace.source.rank is None, trace.source.rank or 0))


def _parsed(data: bytes, shown: str) -> dict[str, Any]:
    if len(data) > LARGEST:
        raise DataError(f"{shown}: larger than {LARGEST >> 20} MiB, so not a dump of a flight recorder")
    try:
        result = load(data, _DOCUMENT) if data[:1] == b"\x80" else json.loads(data)
    except DataError as error:
        raise DataError(f"{shown}: not a {_DOCUMENT}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown}: not a {_DOCUMENT}: {type(error).__name__}: {error}") from error
    if not isinstance(result, dict) or not isinstance(result.get("entries"), list):
        raise DataError(f"{shown}: not a {_DOCUMENT}: no dictionary with entries")
    return result


def _trace(dump: Mapping[str, Any], shown: str, name: str) -> Trace:
    in_name = _RANK_IN_NAME.search(name)
    rank = int(in_name[1]) if in_name else None
    groups = tuple(_groups(dump.get("pg_config")))
    entries = [entry for entry in dump.get("entries", ()) if isinstance(entry, dict)]
    calls = tuple(_call(entry) for entry in entries)
    world = next((len(group.ranks) for group in groups if group.description == DEFAULT_GROUP), 0)
    record = FlightRecord(
        path=shown,
        rank=rank,
        version=_text(dump.get("version")),
        nccl_version=None if dump.get("nccl_version") is None else _text(dump["nccl_version"]),
        groups=groups,
        calls=calls,
        progress=_progress(dump.get("pg_status"), entries),
    )
    builder = TraceBuilder(shown, FORMAT)
    builder.rank, builder.world_size, builder.events = rank, world or None, len(calls)
    builder.rank_source = FILE_NAME
    if rank is None:
        builder.note("the file's name does not end in the number of its rank")
    builder.record("flight_record")
    return builder.build(flight_record=record)


def _groups(config: Any) -> Iterator[RecordedGroup]:
    for name, group in config.items() if isinstance(config, dict) else ():
        if isinstance(group, dict):
            yield RecordedGroup(
                name=_text(group.get("name", name)), description=_text(group.get("desc")),
                ranks=_ranks(group.get("ranks")),
            )  # fmt: skip


def _ranks(value: Any) -> tuple[int, ...]:
    """Parse ``"[0, 1]"`` or ``[0, 1]``; empty for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return ()
    return tuple(value) if isinstance(value, list | tuple) and all(isinstance(rank, int) for rank in value) else ()


def _call(entry: Mapping[str, Any]) -> RecordedCall:
    name = _text(entry.get("profiling_name")).rpartition("nccl:")[2]
    between = bool(entry.get("is_p2p"))
    state = _text(entry.get("state"))
    ended = entry.get("time_discovered_completed_ns") is not None
    timeout = _number(entry.get("timeout_ms"))
    file, line = _place(entry.get("frames"))
    return RecordedCall(
        group=_group_name(entry.get("process_group")),
        description=_group_name(_list(entry.get("process_group"))[1:]),
        operation=operation_of(name.partition(" ")[0]),
        sequence=_number(entry.get("p2p_seq_id" if between else "collective_seq_id")) or 0,
        peer=_peer(name) if between else None,
        state=next((item for item in STATES if item == state), "completed" if ended else "scheduled"),
        retired=bool(entry.get("retired")),
        input_sizes=_sizes(entry.get("input_sizes")),
        dtypes=tuple(map(_text, _list(entry.get("input_dtypes")))),
        created_ns=_number(entry.get("time_created_ns")),
        started_ns=_number(entry.get("time_discovered_started_ns")),
        completed_ns=_number(entry.get("time_discovered_completed_ns")),
        timeout_ns=None if timeout is None else timeout * 10**6,
        file=file,
        line=line,
    )


def _peer(name: str) -> tuple[int, int] | None:
    """Return (from, to) of ``send 0->3`` and ``recv 3<-0``."""
    match = _PEERS.search(name)
    if match is None:
        return None
    first, second = int(match[1]), int(match[3])
    return (first, second) if match[2] == "->" else (second, first)


def _place(frames: Any) -> tuple[str | None, int | None]:
    """Return the innermost frame of user code."""
    for frame in _list(frames):
        if isinstance(frame, dict) and owner_of(file := _text(frame.get("filename"))) is Owner.USER and file:
            return file, _number(frame.get("line"))
    return None, None


def _progress(status: Any, entries: list[dict[str, Any]]) -> dict[str, Progress]:
    """Return the progress of the rank by group.

    The status numbers groups by a process-local id, which entries resolve.
    """
    named: dict[str, str] = {}
    mixed = set()
    for entry in entries:
        name = _group_name(entry.get("process_group"))
        named[_text(entry.get("pg_id"))] = name
        if entry.get("is_p2p"):
            mixed.add(name)  # The numbers are those of sends and receives then.
    result = {}
    for number, item in status.items() if isinstance(status, dict) else ():
        enqueued, completed = (
            _number(item.get(f"last_{what}_collective")) if isinstance(item, dict) else None
            for what in ("enqueued", "completed")
        )
        known = named.get(_text(number))
        if known is not None and known not in mixed and enqueued is not None and completed is not None:
            result[known] = Progress(enqueued=enqueued, completed=completed)
    return result


def _group_name(value: Any) -> str:
    return _text(value[0]) if isinstance(value, list | tuple) and value else _text(value)


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(n for n in _list(item) if isinstance(n, int)) for item in _list(value))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    """Return a text or number of an untrusted dump; ``''`` for other types, whose text may be endless."""
    return str(value) if isinstance(value, str | int | float) else ""
