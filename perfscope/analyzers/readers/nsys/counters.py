"""Samples of counters: metrics of GPUs and network cards, numbers of generic events, and memory of the driver.

GPU metrics are whole percents of the peak, as in their names (``[Throughput %]``; names of clocks have MHz, and exports
hold Hz). Metric ids change between versions, so the name identifies a metric. The low byte of ``typeId`` is the number
of the GPU in the machine. CUDA may number the devices of a process differently (``CUDA_VISIBLE_DEVICES``). If the
export has both numbers, a GPU has CUDA's, as in ``devices``; a GPU without a process is ``machine GPU 3``. Metrics of
network cards are rates (``bytes/ms``). Exports up to 2022.4 hold the samples of GPUs as JSON text in
``GENERIC_EVENTS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from perfscope.analyzers.readers.columns import Columns, join_columns
from perfscope.analyzers.readers.nsys.database import NULL, Session, nullable, process_of
from perfscope.model.intervals import distinct_rows
from perfscope.model.trace.columns import Array

_METRICS = "TARGET_INFO_GPU_METRICS"
_NETWORK = "TARGET_INFO_NETWORK_METRICS"
_LONGEST_NS = 2**53

_TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"

_FREED = 1

_ON_HOST = (0, 1)
"""``memKind``: pageable and pinned memory."""


def read_counters(session: Session) -> Columns:
    """Return ``time_ns``, ``name`` and ``value`` of all samples, in order of time."""
    parts = [part for part in (_gpus(session), _cards(session), _generic(session)) if len(part["time_ns"])]
    if not parts:
        return {}
    columns = join_columns(parts)
    order = np.argsort(columns["time_ns"], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _samples(session: Session, table: str, time: Array, name: Array, value: Array) -> Columns:
    """Return samples on the trace's clock; those without time, name or value count as unplaced."""
    session.pool.events += len(time)
    sound = (time != NULL) & (np.abs(time) < _LONGEST_NS) & (name >= 0)
    if value.dtype.kind == "i":
        sound &= value != NULL
    lost = int((~sound).sum())
    if lost:
        session.pool.unplaced[f"{table}: a sample without a valid time, a known metric or a value"] += lost
    return {
        "time_ns": time[sound] + session.epoch_ns,
        "name": name[sound].astype(np.int32),
        "value": value[sound].astype(np.float64),
    }


def _gpu_names(session: Session) -> Callable[[int], str]:
    """Return a function from a GPU's machine number to its name: CUDA's number if all processes agree."""
    pairs: set[tuple[int, int]] = set()
    for table, gpu, cuda in (("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"), ("TARGET_INFO_GPU", "id", "cuDevice")):
        columns = session.database.integers(table, gpu, cuda)
        numbered = zip(columns[gpu].tolist(), columns[cuda].tolist(), strict=True)
        pairs = pairs or {pair for pair in numbered if NULL not in pair}
    by_gpu = dict(pairs)
    if not pairs:
        return lambda number: f"GPU {number}"
    if len(by_gpu) < len(pairs) or len(set(by_gpu.values())) < len(pairs):
        return lambda number: f"machine GPU {number}"
    return lambda number: f"GPU {by_gpu[number]}" if number in by_gpu else f"machine GPU {number}"


def _gpus(session: Session) -> Columns:
    rows = session.database.integers("GPU_METRICS", "timestamp", "typeId", "metricId", "value")
    columns, (texts,) = session.database.mixed(_METRICS, ("typeId", "metricId"), "metricName")
    called = _gpu_names(session)
    named = {
        (kind, metric): session.pool.code(f"{called(kind & 0xFF)}: {text}")
        for kind, metric, text in zip(columns["typeId"].tolist(), columns["metricId"].tolist(), texts, strict=True)
        if isinstance(text, str)
    }
    name = _by_key(rows["typeId"], rows["metricId"], named)
    return _samples(session, "GPU_METRICS", rows["timestamp"], name, rows["value"])


def _cards(session: Session) -> Columns:
    """Return metrics of network cards; a sample covers the interval that it ends."""
    rows = session.database.integers("NET_NIC_METRIC", "end", "globalId", "metricsListId", "metricsIdx", "value")
    columns, (texts, units) = session.database.mixed(_NETWORK, ("metricsListId", "metricsIdx"), "name", "unit")
    metrics = {
        (group, index): f"{text} [{unit}]" if isinstance(unit, str) and unit else text
        for group, index, text, unit in zip(
            columns["metricsListId"].tolist(), columns["metricsIdx"].tolist(), texts, units, strict=True
        )
        if isinstance(text, str)
    }
    cards = {card: index for index, card in enumerate(np.unique(rows["globalId"]).tolist())}
    first, kind = distinct_rows(rows["globalId"], rows["metricsListId"], rows["metricsIdx"])
    codes = [
        session.pool.code(f"NIC {cards[card]}: {metrics[group, index]}") if (group, index) in metrics else -1
        for card, group, index in zip(
            *(rows[name][first].tolist() for name in ("globalId", "metricsListId", "metricsIdx")), strict=True
        )
    ]
    name = np.array(codes, np.int64)[kind]
    return _samples(session, "NET_NIC_METRIC", rows["end"], name, rows["value"])


def _generic(session: Session) -> Columns:
    """Return numbers in the JSON of generic events, without texts."""
    columns, (read,) = session.database.mixed(
        "GENERIC_EVENTS", ("timestamp", "typeId"), "data", keep={"data": _numbers}
    )
    time, name, value = [], [], []
    called = _gpu_names(session)
    unread = 0
    for moment, kind, numbers in zip(columns["timestamp"].tolist(), columns["typeId"].tolist(), read, strict=True):
        unread += not numbers
        for key, number in numbers.items() if isinstance(numbers, dict) else ():
            time.append(moment)
            name.append(session.pool.code(f"{called(kind & 0xFF)}: {key}" if kind != NULL else key))
            value.append(number)
    if unread:
        session.pool.events += unread
        session.pool.unplaced["GENERIC_EVENTS: an event without numbers"] += unread
    return _samples(
        session, "GENERIC_EVENTS", np.array(time, np.int64), np.array(name, np.int64), np.array(value, np.float64)
    )


def _numbers(text: object) -> dict[str, float]:
    try:
        held = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    result = {}
    for key, value in held.items() if isinstance(held, dict) else ():
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        try:
            number = float(value)
        except (ValueError, OverflowError):
            continue
        if np.isfinite(number):
            result[str(key)[:100]] = number
    return result


def _by_key(first: Array, second: Array, named: dict[tuple[int, int], int]) -> Array:
    rows, kind = distinct_rows(first, second)
    codes = [named.get(pair, -1) for pair in zip(first[rows].tolist(), second[rows].tolist(), strict=True)]
    return np.array(codes, np.int64)[kind]


# Memory of the driver: events of ``cudaMalloc`` and ``cudaFree`` (``nsys profile --cuda-memory-usage=true``).
#
# A framework takes large segments from the driver and divides them itself. These rows are the segments.


def read_usage(session: Session) -> Columns:
    """Return ``time_ns, process, globalTid, correlation, on_device, ordinal, address, bytes`` of each event."""
    rows = session.database.integers(
        _TABLE, "start", "globalPid", "deviceId", "correlationId", "address", "bytes", "memKind", "memoryOperationType"
    )
    time = rows["start"]
    session.pool.events += len(time)
    sound = (time != NULL) & (np.abs(time) < _LONGEST_NS) & (rows["bytes"] >= 0)
    lost = int((~sound).sum())
    if lost:
        session.pool.unplaced[f"{_TABLE}: an event without a valid time or size"] += lost
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
