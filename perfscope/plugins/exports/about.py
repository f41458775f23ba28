"""Events that describe an export's sources, devices and findings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.model.documents import perfetto_vocabulary as words
from perfscope.model.finding import Cell, Finding
from perfscope.model.trace import Trace
from perfscope.model.trace.columns import Array
from perfscope.model.untrusted_text import sanitize_value
from perfscope.plugins.exports.events import (
    Argument,
    Events,
    Texts,
    Track,
    Tracks,
    constant,
    no_flow,
    of_column,
    spread,
)


def about(trace: Trace, texts: Texts, home: Track, devices: Sequence[int]) -> Events:
    """One instant for the source and one per device, at the trace's first time."""
    rows = trace.rows["devices"]
    size = 1 + len(rows)
    start = first_ns(trace)
    source = texts.code(json.dumps(_source(trace), sort_keys=True))
    unplaced = texts.code(", ".join(f"{reason}: {count}" for reason, count in trace.source.unplaced.items()))
    arguments = [
        spread(Argument(name=name, value="text", values=_one(code)), _one(0), size)
        for name, code in (("source", source), ("unplaced", unplaced))
    ]
    positions = np.arange(1, size)
    for column, name in words.ARGUMENTS["devices"].items():
        arguments.append(spread(of_column(name, rows.table.column(column), rows[column]), positions, size))
    category = constant(texts.code(words.DEVICE), size)
    category[0] = texts.code(words.SOURCE)
    titles = constant(texts.code("device"), size)
    titles[0] = texts.code("source")
    return Events(
        kind="instants",
        track=np.array([home.uuid, *devices], np.int64),
        start_ns=constant(start, size),
        end_ns=constant(start, size),
        name=titles,
        category=category,
        flow=no_flow(size),
        arguments=tuple(arguments),
    )


def _one(value: int) -> Array:
    return np.array([value], np.int64)


_WORD = re.compile(r"[\w:,.+-]{1,40}$")


def _source(trace: Trace) -> dict[str, object]:
    """Fields of the source that readers of an export need, without those that would have to be cut or masked."""
    source = trace.source
    return {
        "format": source.format,
        "rank": source.rank,
        "rank_source": source.rank_source,
        "world_size": source.world_size,
        "backend": source.backend if source.backend and _WORD.match(source.backend) else None,
        "events_read": source.events_read,
        "events_only": source.events_only,
        "recorded": sorted(trace.recorded),
    }


def first_ns(trace: Trace) -> int:
    """The first time of a trace, ns; 0 if nothing has a time."""
    times = [
        int(rows[name].min())
        for rows in trace.rows.values()
        for name in ("start_ns", "time_ns")
        if name in rows and len(rows)
    ]
    return min(times, default=0)


def has_times(trace: Trace) -> bool:
    """True if anything in the trace has a time."""
    return any(len(rows) and ("start_ns" in rows or "time_ns" in rows) for rows in trace.rows.values())


def found(findings: Sequence[tuple[str, Finding]], texts: Texts, tracks: Tracks, start_ns: int) -> list[Events]:
    """Findings as instants at the start, costliest first, with their advice and evidence as arguments.

    They are not spans, because a cost is a sum over the trace, after overlap, and has no position in time.
    """
    if not findings:
        return []
    marks = tracks.plain(tracks.process("findings"), "findings")
    size = len(findings)
    return [
        Events(
            kind="instants",
            track=constant(marks.uuid, size),
            start_ns=constant(start_ns, size),
            end_ns=constant(start_ns, size),
            name=_codes([finding.title for _, finding in findings], texts),
            category=constant(texts.code(words.FINDING), size),
            flow=no_flow(size),
            arguments=_arguments(findings, texts),
        )
    ]


def _codes(values: Sequence[str], texts: Texts) -> Array:
    return np.array([texts.code(value) for value in values], np.int64)


def _arguments(rows: Sequence[tuple[str, Finding]], texts: Texts) -> tuple[Argument, ...]:
    columns: dict[str, list[str | None]] = {
        "rule": [rule for rule, _ in rows],
        "subject": [finding.subject for _, finding in rows],
        "severity": [finding.severity for _, finding in rows],
        "basis": [finding.basis for _, finding in rows],
        "where": [finding.where.label() for _, finding in rows],
        "ranks": [", ".join(map(str, finding.ranks)) or None for _, finding in rows],
        "detail": [finding.detail or None for _, finding in rows],
        "advice": [finding.advice for _, finding in rows],
    }
    for index in range(max(len(finding.evidence) for _, finding in rows)):
        columns[f"evidence {index + 1:02}"] = [
            _evidence(finding.evidence[index]) if index < len(finding.evidence) else None for _, finding in rows
        ]
    arguments = []
    for name, values in columns.items():
        present = np.array([value is not None for value in values], np.bool_)
        codes = _codes([value or "" for value in values], texts)
        arguments.append(Argument(name=name, value="text", values=codes, present=present))
    for name in ("cost_ns", "cost_ns_per_step", "cost_bytes"):
        held = [getattr(finding, name) for _, finding in rows]
        present = np.array([value is not None for value in held], np.bool_)
        if present.any():
            numbers = np.array([value or 0 for value in held], np.int64)
            arguments.append(Argument(name=name, value="int", values=numbers, present=present))
    return tuple(arguments)


def _evidence(row: Mapping[str, Cell]) -> str:
    """``wait_ns=12000, op=aten::item``: the values that the row has."""
    return ", ".join(f"{key}={value}" for key, value in sanitize_value(row).items() if value is not None)
