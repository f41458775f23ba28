"""Memory of the driver: what ``cudaMalloc`` and ``cudaFree`` did (``nsys profile --cuda-memory-usage=true``).

A framework takes large segments from the driver and hands them out itself: these rows are the segments.
"""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.readers.kineto_json.grown import Columns
from perfscope.analyzers.readers.nsys_sqlite.database import NULL
from perfscope.analyzers.readers.nsys_sqlite.session import Session, nullable, process_of

_TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_FREED = 1
_ON_HOST = (0, 1)
"""``memKind``: pageable and pinned memory."""
_LONGEST_NS = 2**53


def read_usage(session: Session) -> Columns:
    """``time_ns, process, globalTid, correlation, on_device, ordinal, address, bytes`` of each event."""
    rows = session.database.integers(
        _TABLE, "start", "globalPid", "deviceId", "correlationId", "address", "bytes", "memKind", "memoryOperationType"
    )
    time = rows["start"]
    session.pool.events += len(time)
    sound = (time != NULL) & (np.abs(time) < _LONGEST_NS) & (rows["bytes"] >= 0)
    lost = int((~sound).sum())
    if lost:
        session.pool.unplaced[f"{_TABLE}: an event without a sound time or size"] += lost
    rows = {name: values[sound] for name, values in rows.items()}
    if not len(rows["start"]):
        return {}
    address = np.where(rows["address"] == NULL, 0, rows["address"])
    return {
        "time_ns": rows["start"] + session.epoch_ns,
        "process": process_of(rows["globalPid"], rows["globalPid"]),
        "globalTid": rows["globalPid"],
        "correlation": nullable(rows["correlationId"]),
        "on_device": ~np.isin(rows["memKind"], _ON_HOST),
        "ordinal": nullable(rows["deviceId"]),
        "address": address.view(np.uint64),
        "bytes": np.where(rows["memoryOperationType"] == _FREED, -rows["bytes"], rows["bytes"]),
    }
