"""Writes small Nsight Systems exports for tests: tables as an export of an old or a new version has them."""

from __future__ import annotations

import sqlite3
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscope.analyzers.readers.nsys import reader as nsys_reader
from perfscope.model.trace import Trace

EPOCH_NS = 1_700_000_000_000_000_000

PROCESS = "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER"
WHERE = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, "
    "globalPid INTEGER"
)
CHAIN = "id INTEGER, symbol INTEGER, module INTEGER, kernelMode INTEGER, unresolved INTEGER, stackDepth INTEGER"
TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "ANALYSIS_DETAILS": "globalVid INTEGER, duration INTEGER, startTime INTEGER, stopTime INTEGER",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, cuDevice INTEGER, smCount INTEGER, totalMemory INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": PROCESS + ", eventClass INTEGER, correlationId INTEGER, returnValue INTEGER, "
    "callchainId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": WHERE
    + ", demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, "
    "blockY INTEGER, blockZ INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": WHERE + ", graphId INTEGER, graphExecId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": WHERE
    + ", bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, dstDeviceId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": WHERE + ", value INTEGER, bytes INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": WHERE + ", syncType INTEGER, eventId INTEGER",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, "
    "textId INTEGER, domainId INTEGER, binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER, schemaId INTEGER, idx INTEGER, type INTEGER, name TEXT, "
    "offset INTEGER",
    "OSRT_API": PROCESS + ", nestingLevel INTEGER, callchainId INTEGER",
    "OSRT_CALLCHAINS": CHAIN,
    "CUDA_CALLCHAINS": CHAIN,
    "PROFILER_OVERHEAD": PROCESS,
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
    "TARGET_INFO_GPU_METRICS": "typeId INTEGER, sourceId INTEGER, typeName TEXT, metricId INTEGER, metricName TEXT",
    "NET_NIC_METRIC": "start INTEGER, end INTEGER, globalId INTEGER, metricsListId INTEGER, metricsIdx INTEGER, "
    "value INTEGER",
    "TARGET_INFO_NETWORK_METRICS": "metricsListId INTEGER, metricsIdx INTEGER, name TEXT, unit TEXT",
    "COMPOSITE_EVENTS": "id INTEGER PRIMARY KEY, start INTEGER, cpu INTEGER, threadState INTEGER, globalTid INTEGER, "
    "cpuCycles INTEGER",
    "SAMPLING_CALLCHAINS": CHAIN,
    "GENERIC_EVENTS": "timestamp INTEGER, typeId INTEGER, data TEXT",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start INTEGER, globalPid INTEGER, deviceId INTEGER, address INTEGER, "
    "bytes INTEGER, memKind INTEGER, memoryOperationType INTEGER, correlationId INTEGER",
}
"""Tables as they are written; an old export lacks some, and every export lacks those without rows."""

PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75


@dataclass
class Export:
    """Collects rows by table; ``write`` makes the file. Times in us, as the other builders of tests."""

    epoch_ns: int = EPOCH_NS
    strings: list[str] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, table: str, **values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def text(self, value: str) -> int:
        if value not in self.strings:
            self.strings.append(value)
        return self.strings.index(value) + 1

    def call(self, name: str, start: float, end: float, *, correlation: int = 0, pid: int = 100, tid: int = 1) -> None:
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **_span(start, end), globalTid=tid_of(pid, tid), nameId=self.text(name),
                 eventClass=int(name.startswith("cu") and not name.startswith("cuda")),
                 correlationId=correlation)  # fmt: skip

    def kernel(self, name: str, start: float, end: float, **more: Any) -> None:
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", **_span(start, end), **_place(more), demangledName=self.text(name),
                 shortName=self.text(name.split("<")[0]), gridX=4, gridY=2, gridZ=1, blockX=128, blockY=1, blockZ=1,
                 **more)  # fmt: skip

    def copy(self, start: float, end: float, *, kind: int, source: int, target: int, size: int, **more: Any) -> None:
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", **_span(start, end), **_place(more), bytes=size, copyKind=kind,
                 srcKind=source, dstKind=target, **more)  # fmt: skip

    def wait(self, start: float, end: float, *, kind: int, **more: Any) -> None:
        self.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **_span(start, end), **_place(more), syncType=kind, **more)

    def range(self, name: str, start: float, end: float | None, *, event: int = PUSH_POP, pid: int = 100, tid: int = 1,
              domain: int = 0, registered: bool = False, payload: bytes | None = None) -> None:  # fmt: skip
        named = {"textId": self.text(name)} if registered else {"text": name}
        stop = {} if end is None else {"end": round(end * 1000)}
        more = {} if payload is None else {"binaryData": payload}
        self.add("NVTX_EVENTS", start=round(start * 1000), **stop, eventType=event, globalTid=tid_of(pid, tid),
                 domainId=domain, **named, **more)  # fmt: skip

    def sample(self, time: float, *frames: tuple[str, str], pid: int = 100, tid: int = 1) -> None:
        """A CPU sample; ``frames``: (symbol, path of its file), innermost first; a symbol ``0x...`` is unresolved."""
        number = len(self.rows.get("COMPOSITE_EVENTS", ())) + 1
        self.add("COMPOSITE_EVENTS", id=number, start=round(time * 1000), globalTid=tid_of(pid, tid), cpuCycles=1)
        self.chain("SAMPLING_CALLCHAINS", number, *frames)

    def chain(self, table: str, number: int, *frames: tuple[str, str]) -> None:
        """A stack; ``frames``: as of ``sample``."""
        for depth, (symbol, module) in enumerate(frames):
            self.add(table, id=number, symbol=self.text(symbol), module=self.text(module),
                     unresolved=1 if symbol.startswith("0x") else None, stackDepth=depth)  # fmt: skip

    def write(self, path: Path, *, lazy: bool = True, without: tuple[str, ...] = ()) -> Path:
        """``lazy``: tables without rows are left out, as ``nsys export`` does; ``without``: columns, by name."""
        connection = sqlite3.connect(path)
        rows = {
            "StringIds": [{"id": place + 1, "value": value} for place, value in enumerate(self.strings)],
            "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": self.epoch_ns}],
            **self.rows,
        }
        for table, declared in TABLES.items():
            if lazy and table not in rows and table != "StringIds":
                continue
            columns = [column for column in declared.split(", ") if column.split()[0] not in without]
            connection.execute(f"CREATE TABLE {table} ({', '.join(_quoted(column) for column in columns)})")
            for values in rows.get(table, ()):
                kept = {name: value for name, value in values.items() if name not in without}
                names, marks = ", ".join(f'"{name}"' for name in kept), ", ".join("?" for _ in kept)
                connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(kept.values()))
        connection.commit()
        connection.close()
        return path


def tid_of(pid: int, tid: int = 0) -> int:
    """A global id: hardware, virtual machine, process, thread."""
    return (1 << 48) | (pid << 24) | tid


def payload(domain: int, schema: int, body: bytes) -> bytes:
    """Bytes of an NVTX payload as the export holds them."""
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, len(body), len(body) + 32) + body


def _span(start: float, end: float) -> dict[str, int]:
    return {"start": round(start * 1000), "end": round(end * 1000)}


def _place(more: dict[str, Any]) -> dict[str, Any]:
    """Where device work ran; takes ``device, stream, correlation, pid, context`` out of ``more``."""
    return {
        "deviceId": more.pop("device", 0),
        "contextId": more.pop("context", 1),
        "streamId": more.pop("stream", 7),
        "correlationId": more.pop("correlation", 0),
        "globalPid": tid_of(more.pop("pid", 100)),
    }


def _quoted(column: str) -> str:
    name, _, rest = column.partition(" ")
    return f'"{name}" {rest}'


def read(folder: Path, export: Export, **how: Any) -> list[Trace]:
    traces = nsys_reader.read(export.write(folder / "report.sqlite", **how))
    for trace in traces:
        trace.check()
    return traces


def read_one(folder: Path, export: Export, **how: Any) -> Trace:
    (trace,) = read(folder, export, **how)
    return trace


def names(trace: Trace, table: str) -> list[str]:
    return [trace.text(int(code)) for code in trace.rows[table]["name"]]


def small() -> Export:
    """One launch, a copy back, a wait, in two ranges of one thread."""
    export = Export()
    export.range("forward", 0, 100)
    export.range("aten::mm, seq = 3, op_id = 12, sizes = [[2, 3], [3, 4]]", 5, 20, registered=True)
    export.call("cudaLaunchKernel_v7000", 10, 15, correlation=1)
    export.kernel("void gemm<float>(float*)", 20, 60, correlation=1)
    export.call("cudaMemcpyAsync_v3020", 30, 70, correlation=2)
    export.copy(60, 70, kind=2, source=2, target=0, size=400, correlation=2)
    export.call("cuStreamSynchronize", 70, 72, correlation=3)
    export.wait(70, 72, kind=3, correlation=3)
    return export
