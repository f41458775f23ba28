"""JSON of rocprofv3 (``--output-format json``): one document with an entry per process.

Records have numbers of kinds, operations and kernels, whose texts are in other parts of the document. Only the fields
below are decoded: no command, environment or name of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.rocprof.events import Agent, Events, blocks_of, no_events, number, product
from perfscope.model.errors import DataError

LARGEST = 8 << 30
"""Maximum bytes of a document."""

_GPU = 2
"""Type of an agent."""


class _Handle(Struct):
    handle: int = -1


class _Correlation(Struct):
    internal: int = -1


class _Size(Struct):
    x: int = -1
    y: int = -1
    z: int = -1


class _Agent(Struct):
    id: _Handle = field(default_factory=_Handle)
    type: Any = None
    name: str = ""
    product_name: str = ""
    cu_count: int = 0


class _Symbol(Struct):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Dispatch(Struct):
    agent_id: _Handle = field(default_factory=_Handle)
    queue_id: _Handle = field(default_factory=_Handle)
    kernel_id: int = -1
    workgroup_size: _Size = field(default_factory=_Size)
    grid_size: _Size = field(default_factory=_Size)


class _Record(Struct):
    """A record of any kind."""

    start_timestamp: int = 0
    end_timestamp: int = -1
    kind: int = -1
    operation: int = -1
    thread_id: int = -1
    correlation_id: _Correlation = field(default_factory=_Correlation)
    stream_id: _Handle = field(default_factory=_Handle)
    dispatch_info: _Dispatch = field(default_factory=_Dispatch)
    src_agent_id: _Handle = field(default_factory=_Handle)
    dst_agent_id: _Handle = field(default_factory=_Handle)
    bytes: int = -1


class _Records(Struct):
    kernel_dispatch: list[_Record] = []
    memory_copy: list[_Record] = []
    hip_api: list[_Record] = []
    marker_api: list[_Record] = []


class _Kind(Struct):
    kind: str = ""
    operations: list[str] = []


class _Message(Struct):
    key: int = -1
    value: str = ""


class _Strings(Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Metadata(Struct):
    pid: int = -1


class _Process(Struct):
    metadata: _Metadata = field(default_factory=_Metadata)
    agents: list[_Agent] = []
    kernel_symbols: list[_Symbol] = []
    strings: _Strings = field(default_factory=_Strings)
    buffer_records: _Records = field(default_factory=_Records)


class _Document(Struct):
    processes: list[_Process] = field(default_factory=list, name="rocprofiler-sdk-tool")


def read_document(path: Path) -> list[Events]:
    """Return the events of each process. ``DataError``, one line, for a document that is cut off or corrupt."""
    with open_bytes(path, LARGEST) as data:
        try:
            document = msgspec.json.decode(bytes(data), type=_Document)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: cut off or corrupt: {str(error)[:120]}") from None
    return [_events(process) for process in document.processes]


def _events(process: _Process) -> Events:
    events = no_events()
    events.process = process.metadata.pid if process.metadata.pid >= 0 else None
    for agent in process.agents:
        if agent.type in (_GPU, "GPU"):
            name = (agent.product_name or agent.name)[:200]
            cores = agent.cu_count if agent.cu_count > 0 else None
            events.agents.append(Agent(key=_small(agent.id.handle), order=len(events.agents), name=name, cores=cores))
    kernels = {one.kernel_id: one.formatted_kernel_name or one.kernel_name for one in process.kernel_symbols}
    messages = {one.key: one.value for one in process.strings.marker_api}
    records = process.buffer_records
    for record in records.kernel_dispatch:
        _kernel(events, record, kernels)
    for record in records.memory_copy:
        added = events.copies.add(
            _operation(process.strings, record), **_times(record), source=_small(record.src_agent_id.handle),
            target=_small(record.dst_agent_id.handle), stream=_small(record.stream_id.handle),
            correlation=number(record.correlation_id.internal), bytes=number(record.bytes),
        )  # fmt: skip
        events.leave("copy without times", not added)
    for record in records.hip_api:
        added = events.calls.add(
            _operation(process.strings, record), **_times(record), thread=number(record.thread_id),
            correlation=number(record.correlation_id.internal),
        )  # fmt: skip
        events.leave("call without times", not added)
    for record in records.marker_api:
        text = messages.get(record.correlation_id.internal)
        added = text is not None and events.marks.add(text, **_times(record), thread=number(record.thread_id))
        events.leave("marker without a text", not added)
    return events


def _kernel(events: Events, record: _Record, names: dict[int, str]) -> None:
    info = record.dispatch_info
    grid, group = ((size.x, size.y, size.z) for size in (info.grid_size, info.workgroup_size))
    added = events.kernels.add(
        names.get(info.kernel_id, "").removesuffix(".kd"), **_times(record), agent=_small(info.agent_id.handle),
        queue=_small(info.queue_id.handle), stream=_small(record.stream_id.handle),
        correlation=number(record.correlation_id.internal), blocks=blocks_of(grid, group), threads=product(group),
    )  # fmt: skip
    events.leave("kernel without times", not added)


def _operation(strings: _Strings, record: _Record) -> str:
    kinds = strings.buffer_records
    if not 0 <= record.kind < len(kinds):
        return ""
    operations = kinds[record.kind].operations
    return operations[record.operation] if 0 <= record.operation < len(operations) else ""


def _times(record: _Record) -> dict[str, int]:
    start, end = number(record.start_timestamp), number(record.end_timestamp)
    return {"start": start, "end": end} if start > 0 else {"start": 0, "end": -1}


def _small(handle: int) -> int:
    """Return a handle as an id: handles are numbers of 64 bits, or addresses."""
    return handle if -1 <= handle < 1 << 61 else handle & ((1 << 61) - 1)
