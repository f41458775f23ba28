"""CSV tables of rocprofv3: a file per domain, all of one process with the same beginning of their names.

``238_kernel_trace.csv``, ``238_memory_copy_trace.csv``, ``238_hip_api_trace.csv``, ``238_marker_api_trace.csv`` and
``238_agent_info.csv``. Columns are found by name, in any case, because their names changed: ``LDS_Block_Size`` was
``Group_Segment_Size``, ``Stream_Id`` is new, an agent was a number and is ``Agent 2`` or ``GPU 0``. Other columns are
not kept.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.rocprof.events import Agent, Events, blocks_of, no_events, number, product
from perfscope.model.errors import DataError

KERNELS, COPIES, CALLS = "kernel_trace", "memory_copy_trace", "hip_api_trace"
MARKS, AGENTS = "marker_api_trace", "agent_info"
LARGEST = 16 << 30
"""Maximum bytes of a table."""

_NAME = re.compile(r"(.*?)_?(kernel_trace|memory_copy_trace|hip_api_trace|marker_api_trace|agent_info)\.csv(?:\.gz)?$")
_AGENT = re.compile(r"(?:(Agent|GPU)\s+)?(\d{1,18})$", re.IGNORECASE)
_PROCESS = re.compile(r"(?:^|_)(\d{1,9})$")
_AXES = ("x", "y", "z")
_PLACES = 1 << 32
"""``GPU 0`` counts GPUs alone, so its key is beyond those of agents."""


def split_name(path: Path) -> tuple[str, str] | None:
    """Return the beginning of a table's name and its domain: ``("238", "kernel_trace")``; None for other files."""
    match = _NAME.match(path.name)
    return None if match is None else (match[1], match[2])


def table_beside(path: Path, domain: str) -> Path:
    """Return the path of the table of ``domain`` of the same process. ``path``: a table with a name of rocprofv3."""
    match = _NAME.match(path.name)
    assert match is not None
    begin, end = match.span(2)
    return path.with_name(path.name[:begin] + domain + path.name[end:])


def belongs_to_other(path: Path) -> bool:
    """Return whether a file is read with the table of kernels next to it."""
    named = split_name(path)
    return named is not None and named[1] != KERNELS and table_beside(path, KERNELS).is_file()


def is_table(head: bytes, domain: str) -> bool:
    """Return whether the first line is the header of a table of ``domain``."""
    header = head.partition(b"\n")[0].lower().replace(b'"', b"").strip().split(b",")
    column = {KERNELS: b"kernel_name", COPIES: b"direction"}.get(domain, b"function")
    return column in header and b"start_timestamp" in header and b"counter_name" not in header


def read_tables(path: Path) -> Events:
    """Return the events of a table and of the others of the same process. ``DataError`` for a corrupt table."""
    named = split_name(path)
    events = no_events()
    process = None if named is None else _PROCESS.search(named[0])
    events.process = None if process is None else int(process[1])
    for domain, add in ((AGENTS, _agents), (KERNELS, _kernel), (COPIES, _copy), (CALLS, _call), (MARKS, _mark)):
        own = domain == (KERNELS if named is None else named[1])
        if own or (named is not None and table_beside(path, domain).is_file()):
            for row in _rows(path if own else table_beside(path, domain)):
                add(events, row)
    return events


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a table by column, names in lower case. ``DataError`` for one that is not CSV."""
    with open_bytes(path, LARGEST) as data:
        lines = iter(io.BytesIO(data).readline if isinstance(data, bytes) else data.readline, b"")
        reader = csv.reader(line.decode("utf-8", "replace").replace("\0", "") for line in lines)
        try:
            header = [name.strip().lower() for name in next(reader, [])]
            for row in reader:
                if len(row) >= len(header):
                    yield dict(zip(header, row, strict=False))
                elif row:
                    yield {}  # Cut off: it counts as an event without a place.
        except csv.Error as error:
            raise DataError(f"{path}: not CSV of rocprofv3: {error}") from error


def _agents(events: Events, row: Mapping[str, str]) -> None:
    if row.get("agent_type", "").upper() != "GPU":
        return
    place = sum(agent.key < _PLACES for agent in events.agents)
    cores = number(row.get("cu_count"))
    name = (row.get("product_name") or row.get("name") or "").strip()[:200]
    keys = {number(row.get("logical_node_id")), number(row.get("node_id"))} - {-1}
    if not keys:
        return
    # By default an agent is named by its logical number, which is also the node's unless GPUs are hidden.
    first = number(row.get("logical_node_id")) if number(row.get("logical_node_id")) >= 0 else min(keys)
    for key in (first, _PLACES + place):
        events.agents.append(Agent(key=key, order=place, name=name, cores=cores if cores > 0 else None))


def agent_key(text: str | None) -> int:
    """Return the key of ``Agent 2``, ``GPU 0`` or ``2``; -1 for anything else."""
    match = _AGENT.match((text or "").strip())
    if match is None:
        return -1
    return int(match[2]) + (_PLACES if (match[1] or "").lower() == "gpu" else 0)


def _kernel(events: Events, row: Mapping[str, str]) -> None:
    grid, group = ([number(row.get(f"{what}_size_{axis}")) for axis in _AXES] for what in ("grid", "workgroup"))
    added = bool(row) and events.kernels.add(
        row.get("kernel_name", "").removesuffix(".kd"),
        **_times(row),
        agent=agent_key(row.get("agent_id")),
        queue=number(row.get("queue_id")),
        stream=number(row.get("stream_id")),
        correlation=number(row.get("correlation_id")),
        blocks=blocks_of(grid, group),
        threads=product(group),
    )
    events.leave("kernel without times", not added)


def _copy(events: Events, row: Mapping[str, str]) -> None:
    added = bool(row) and events.copies.add(
        row.get("direction", ""),
        **_times(row),
        source=agent_key(row.get("source_agent_id")),
        target=agent_key(row.get("destination_agent_id")),
        stream=number(row.get("stream_id")),
        correlation=number(row.get("correlation_id")),
    )
    events.leave("copy without times", not added)


def _call(events: Events, row: Mapping[str, str]) -> None:
    added = bool(row) and events.calls.add(
        row.get("function", ""), **_times(row), thread=number(row.get("thread_id")),
        correlation=number(row.get("correlation_id")),
    )  # fmt: skip
    events.leave("call without times", not added)


def _mark(events: Events, row: Mapping[str, str]) -> None:
    if "CONTROL" in row.get("domain", "") or "NAME" in row.get("domain", ""):
        events.leave("control of the profiler")
        return
    added = bool(row) and events.marks.add(row.get("function", ""), **_times(row), thread=number(row.get("thread_id")))
    events.leave("marker without times", not added)


def _times(row: Mapping[str, str]) -> dict[str, int]:
    start, end = number(row.get("start_timestamp")), number(row.get("end_timestamp"))
    return {"start": start, "end": end} if start > 0 else {"start": 0, "end": -1}
