"""Device rows: kernels, copies and memsets, graphs that ran as a whole, waits in the driver, the devices."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from perfscope.analyzers.readers.columns import Columns, join_columns
from perfscope.analyzers.readers.nsys import names
from perfscope.analyzers.readers.nsys.database import NULL, Session, nullable, pid_of
from perfscope.model.intervals import distinct_rows
from perfscope.model.trace import CopyKind, HostMemory
from perfscope.model.trace.columns import MISSING, Array

_WHERE = ("deviceId", "contextId", "streamId", "correlationId")
_GRID = ("gridX", "gridY", "gridZ")
_BLOCK = ("blockX", "blockY", "blockZ")
_MOST_THREADS = 1 << 31
_MOST_BLOCKS = 1 << 62


class Device(Struct, kw_only=True):
    """Device rows of all processes; each has ``process``, ``device`` (number), ``stream``, ``correlation``."""

    kernels: Columns
    copies: Columns
    waits: Columns
    graphs: int
    """Rows of ``kernels`` that represent a whole graph."""
    nodes: int
    """Kernels that are nodes of a graph."""


class Product(Struct, frozen=True, kw_only=True):
    """Device properties in the export."""

    name: str | None
    cores: int | None
    memory_bytes: int | None


def read_device(session: Session) -> Device:
    """Return all device rows of an export."""
    kernels, nodes = _kernels(session)
    graphs = _graphs(session, nodes)
    copies = join_columns([_copies(session), _sets(session)])
    whole = len(graphs["start_ns"])
    both = join_columns([kernels, graphs])
    waits = _waits(session, (both, copies))
    for columns in (both, copies, waits):
        del columns["contextId"]
    return Device(
        kernels=both,
        copies=copies,
        waits=waits,
        graphs=whole,
        nodes=int((nodes["graphNodeId"] != NULL).sum()),
    )


def _placed(rows: Columns) -> None:
    """Set the device number, stream and correlation of each row."""
    rows["device"] = np.where(rows["deviceId"] == NULL, 0, rows.pop("deviceId"))
    stream = rows.pop("streamId")
    rows["stream"] = np.where(stream == NULL, MISSING, stream)
    rows["correlation"] = nullable(rows.pop("correlationId"))


def _kernels(session: Session) -> tuple[Columns, Columns]:
    """Return kernels, and the columns that identify nodes of a graph."""
    texts = ("demangledName", "shortName", "mangledName")
    rows = session.events("CUPTI_ACTIVITY_KIND_KERNEL", *_WHERE, *texts, *_GRID, *_BLOCK, "graphNodeId")
    name = np.full(len(rows["start_ns"]), MISSING, np.int32)
    for column in texts:
        ids = rows.pop(column)
        blank = name == MISSING
        if blank.any():
            name[blank] = session.codes(ids[blank])
    if (name == MISSING).any():
        name[name == MISSING] = session.pool.code("(unnamed kernel)")
    _placed(rows)
    rows["name"] = name
    rows["blocks"] = _product(rows, _GRID, _MOST_BLOCKS)
    rows["threads_per_block"] = _product(rows, _BLOCK, _MOST_THREADS).astype(np.int32)
    nodes = {"graphNodeId": rows.pop("graphNodeId"), "process": rows["process"], "correlation": rows["correlation"]}
    return rows, nodes


def _product(rows: Columns, names_: tuple[str, ...], limit: int) -> Array:
    result = np.ones(len(rows["start_ns"]), np.int64)
    known = np.ones(len(result), bool)
    for name in names_:
        side = rows.pop(name)
        known &= (side > 0) & (side < _MOST_THREADS)
        result = np.where(known & (result < limit // np.maximum(side, 1)), result * side, 0)
    return np.where(known & (result > 0), result, MISSING)


def _graphs(session: Session, nodes: Columns) -> Columns:
    """Return graphs recorded as one piece of device time, except those whose nodes were recorded."""
    rows = session.events("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *_WHERE, "graphId")
    _placed(rows)
    recorded = set(zip(nodes["process"].tolist(), nodes["correlation"].tolist(), strict=True))
    alone = [pair not in recorded for pair in zip(rows["process"].tolist(), rows["correlation"].tolist(), strict=True)]
    kept = {name: values[np.array(alone, bool)] for name, values in rows.items()}
    graph = kept.pop("graphId")
    texts = ["CUDA graph" if one == NULL else f"CUDA graph {one}" for one in graph.tolist()]
    kept["name"] = np.array([session.pool.code(text) for text in texts], np.int32)
    kept["blocks"] = np.full(len(graph), MISSING, np.int64)
    kept["threads_per_block"] = np.full(len(graph), MISSING, np.int32)
    return kept


def _copies(session: Session) -> Columns:
    columns = ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
    rows = session.events("CUPTI_ACTIVITY_KIND_MEMCPY", *_WHERE, *columns)
    _placed(rows)
    details = [rows.pop(name) for name in columns[1:]]
    each, inverse = distinct_rows(*details)
    kinds, texts, hosts = [], [], []
    for kind, source, target, first, second in zip(*(values[each].tolist() for values in details), strict=True):
        direction = names.COPY_KINDS.get(kind, CopyKind.UNKNOWN)
        devices = None if NULL in (first, second) else (first, second)
        kinds.append(int(direction))
        texts.append(session.pool.code(names.copy_name(direction, source, target, devices)))
        hosts.append(int(names.host_memory(direction, source, target)))
    rows["kind"] = np.array(kinds, np.uint8)[inverse]
    rows["name"] = np.array(texts, np.int32)[inverse]
    rows["host_memory"] = np.array(hosts, np.uint8)[inverse]
    rows["bytes"] = nullable(rows["bytes"])
    return rows


def _sets(session: Session) -> Columns:
    rows = session.events("CUPTI_ACTIVITY_KIND_MEMSET", *_WHERE, "bytes", "memKind")
    _placed(rows)
    distinct, inverse = np.unique(rows.pop("memKind"), return_inverse=True)
    texts = [session.pool.code(f"Memset ({names.MEMORY_KINDS.get(kind, 'Unknown')})") for kind in distinct.tolist()]
    size = len(rows["start_ns"])
    rows["name"] = np.array(texts, np.int32)[inverse]
    rows["kind"] = np.full(size, int(CopyKind.MEMSET), np.uint8)
    rows["host_memory"] = np.full(size, int(HostMemory.NONE), np.uint8)
    rows["bytes"] = nullable(rows["bytes"])
    return rows


def _waits(session: Session, work: tuple[Columns, ...]) -> Columns:
    """Return waits with the device of their context, because the rows have device 0 for every process."""
    rows = session.events("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", *_WHERE, "syncType", "deprecatedSyncType")
    _placed(rows)
    kind = np.where(rows["syncType"] == NULL, rows.pop("deprecatedSyncType"), rows.pop("syncType"))
    codes = {one: session.pool.code(names.SYNC_NAMES.get(one, "Sync")) for one in np.unique(kind).tolist()}
    rows["name"] = np.array([codes[one] for one in kind.tolist()], np.int32)
    of_context = _contexts(session, work)
    each, inverse = distinct_rows(rows["process"], rows["contextId"], rows["device"])
    places = zip(*(rows[name][each].tolist() for name in ("process", "contextId", "device")), strict=True)
    devices = [of_context.get((process, context), device) for process, context, device in places]
    rows["device"] = np.array(devices, np.int64)[inverse]
    return rows


def _contexts(session: Session, work: tuple[Columns, ...]) -> dict[tuple[int, int], int]:
    """Return (process, context) -> number of the device."""
    result: dict[tuple[int, int], int] = {}
    for table in ("TARGET_INFO_CUDA_NULL_STREAM", "TARGET_INFO_CUDA_CONTEXT_INFO"):
        rows = session.database.integers(table, "hwId", "vmId", "processId", "contextId", "deviceId")
        for hardware, machine, pid, context, device in zip(*(rows[name].tolist() for name in rows), strict=True):
            if NULL not in (hardware, machine, pid, context, device) and 0 <= pid <= 0xFFFFFF:
                result[(hardware & 0xFF) << 32 | (machine & 0xFF) << 24 | pid, context] = device
    for columns in work:  # The device of the work in a context is the best evidence.
        each, _ = distinct_rows(columns["process"], columns["contextId"], columns["device"])
        places = zip(*(columns[name][each].tolist() for name in ("process", "contextId", "device")), strict=True)
        result |= {(process, context): device for process, context, device in places}
    return result


def products(session: Session, process: int, ordinals: list[int]) -> list[Product | None]:
    """Return the properties of the devices with these numbers in a process; ``None`` without any.

    CUDA numbers devices again in each process. Newer exports have the numbers of each; older ones those of one process
    (``cuDevice``), and the oldest none: then the number in the machine is used.
    """
    columns, (texts,) = session.database.mixed("TARGET_INFO_GPU", ("id", "cuDevice", "smCount", "totalMemory"), "name")
    by_number = {
        number: Product(
            name=text if isinstance(text, str) and text else None,
            cores=cores if 0 < cores < 1 << 20 else None,
            memory_bytes=memory if memory > 0 else None,
        )
        for number, cores, memory, text in zip(
            *(columns[name].tolist() for name in ("id", "smCount", "totalMemory")), texts, strict=True
        )
    }
    numbers = dict(zip(columns["cuDevice"].tolist(), columns["id"].tolist(), strict=True))
    if NULL in numbers or len(numbers) < len(by_number):
        numbers = {number: number for number in by_number}
    own = session.database.integers("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
    mine = own["pid"] == pid_of(process)
    numbers |= dict(zip(own["cudaId"][mine].tolist(), own["gpuId"][mine].tolist(), strict=True))
    return [by_number.get(numbers.get(ordinal, NULL)) for ordinal in ordinals]
