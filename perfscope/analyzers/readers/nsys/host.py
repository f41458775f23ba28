"""Host rows: calls of the CUDA runtime and driver, NVTX ranges, calls of the operating system, the profiler's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.readers.builder import Columns, join_columns
from perfscope.analyzers.readers.nsys import names
from perfscope.analyzers.readers.nsys.database import NULL
from perfscope.analyzers.readers.nsys.nccl import Fields, Payloads
from perfscope.analyzers.readers.nsys.session import Session, distinct_rows, nullable, process_of
from perfscope.model.trace import SliceKind
from perfscope.model.trace.columns import MISSING, Array

_SPANS = (
    ("OSRT_API", SliceKind.OTHER, "(system call)"),
    ("PROFILER_OVERHEAD", SliceKind.OVERHEAD, "(profiler)"),
    ("CUPTI_ACTIVITY_KIND_OVERHEAD", SliceKind.OVERHEAD, "(profiler)"),
)
_NVTX = "NVTX_EVENTS"
_NVTX_COLUMNS = ("start", "end", "eventType", "globalTid", "textId", "domainId")

OWN_LANE = {0: "", 1: " ranges", 2: " profiler"}
"""Lanes of a thread that are no part of its stack: start/end ranges, which may cross, and the profiler's work."""


@dataclass(slots=True, kw_only=True)
class Host:
    """The host's rows of all processes."""

    calls: Columns
    """``start_ns, end_ns, process, globalTid, name, correlation``."""
    slices: Columns
    """``start_ns, end_ns, process, globalTid, name, kind, sequence, shapes, lane, domain, payload``.

    ``lane``: of ``OWN_LANE``; ``domain``: code of the NVTX domain's name; ``payload``: row of ``payloads``.
    """
    payloads: list[Fields]
    """What payloads of NVTX ranges tell, the allow-listed fields of NCCL's alone."""


def read_host(session: Session) -> Host:
    """All host rows of an export."""
    calls = session.events("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId", "nameId")
    calls["name"] = _named(session, session.codes(calls.pop("nameId"), names.call_name), "(unnamed call)")
    calls["correlation"] = nullable(calls.pop("correlationId"))
    ranges, payloads = _ranges(session)
    parts = [ranges]
    for table, kind, nameless in _SPANS:
        rows = session.events(table, "nameId")
        rows["name"] = _named(session, session.codes(rows.pop("nameId")), nameless)
        size = len(rows["name"])
        rows["kind"] = np.full(size, int(kind), np.uint8)
        rows["lane"] = np.full(size, 2 if kind == SliceKind.OVERHEAD else 0, np.int64)
        for name, dtype in (("sequence", np.int64), ("shapes", np.int32), ("domain", np.int32), ("payload", np.int64)):
            rows[name] = np.full(size, MISSING, dtype)
        parts.append(rows)
    return Host(calls=calls, slices=join_columns(parts), payloads=payloads)


def _named(session: Session, codes: Array, nameless: str) -> Array:
    if not (codes == MISSING).any():
        return codes
    return np.where(codes == MISSING, session.pool.code(nameless), codes).astype(np.int32)


def _ranges(session: Session) -> tuple[Columns, list[Fields]]:
    """NVTX ranges and what the payloads they carry tell."""
    payloads = Payloads(session.database)
    columns, (texts, binaries) = session.database.mixed(
        _NVTX,
        _NVTX_COLUMNS,
        "text",
        "binaryData",
        keep={
            "text": lambda value: session.pool.code(value) if isinstance(value, str) else None,
            "binaryData": lambda value: payloads.fields(value) or None if isinstance(value, bytes) else None,
        },
    )
    codes = session.codes(columns.pop("textId"))
    written = np.array([code if isinstance(code, int) else MISSING for code in texts], np.int32)
    codes = np.where(written == MISSING, codes, written)
    kind = columns["eventType"]
    domains = _domain_names(columns, codes)
    columns |= {"text": codes, "row": np.arange(len(codes)), "domain": _domain_codes(columns, domains)}
    span = (kind == names.NVTX_PUSH_POP) | (kind == names.NVTX_START_END)
    session.pool.events += int((~span).sum())
    for number in np.unique(kind[~span]).tolist():
        count = int((kind == number).sum())
        if number != names.NVTX_DOMAIN:
            session.pool.unplaced[names.NVTX_OTHERS.get(number, "NVTX event of another type")] += count
    spans = {name: values[span] for name, values in columns.items()}
    spans["globalPid"] = np.full(int(span.sum()), NULL)
    ranges = session.timed(spans, _NVTX)
    told = [binaries[row] for row in ranges.pop("row").tolist()]
    carries = np.array([isinstance(fields, dict) for fields in told], bool)
    ranges["payload"] = np.where(carries, np.cumsum(carries) - 1, MISSING)
    ranges["lane"] = (ranges.pop("eventType") == names.NVTX_START_END).astype(np.int64)
    del ranges["domainId"]
    _describe(session, ranges)
    return ranges, [fields for fields in told if isinstance(fields, dict)]


def _domain_names(columns: Columns, codes: Array) -> dict[tuple[int, int], int]:
    """(process, number) -> code of a domain's name."""
    rows = np.flatnonzero(columns["eventType"] == names.NVTX_DOMAIN)
    process = process_of(columns["globalTid"][rows], columns["globalTid"][rows])
    return dict(
        zip(zip(process.tolist(), columns["domainId"][rows].tolist(), strict=True), codes[rows].tolist(), strict=True)
    )


def _domain_codes(columns: Columns, named: dict[tuple[int, int], int]) -> Array:
    process = process_of(columns["globalTid"], columns["globalTid"])
    each, inverse = distinct_rows(process, columns["domainId"])
    pairs = zip(process[each].tolist(), columns["domainId"][each].tolist(), strict=True)
    return np.array([named.get(pair, MISSING) for pair in pairs], np.int32)[inverse]


def _describe(session: Session, ranges: Columns) -> None:
    """Name, kind, sequence number and shapes of each range, from its text; once a distinct text."""
    pool = session.pool
    distinct, inverse = np.unique(ranges.pop("text"), return_inverse=True)
    read = [names.read_range(pool.strings[code] if code != MISSING else "") for code in distinct.tolist()]
    unknown = [one.sequence if one.sequence is not None else MISSING for one in read]
    ranges["name"] = np.array([pool.code(one.name) for one in read], np.int32)[inverse]
    ranges["kind"] = np.array([int(one.kind) for one in read], np.uint8)[inverse]
    ranges["sequence"] = np.array(unknown, np.int64)[inverse]
    ranges["shapes"] = np.array([pool.code(one.sizes) if one.sizes else MISSING for one in read], np.int32)[inverse]
