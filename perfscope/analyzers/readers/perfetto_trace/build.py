"""From the events of a Perfetto trace to traces: one for each that an export of ours holds, otherwise one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from perfscope.analyzers.readers.kineto_json.grown import Columns
from perfscope.analyzers.readers.perfetto_trace import vocabulary as words
from perfscope.analyzers.readers.perfetto_trace.collect import BEGIN, COMPLETE, COUNTER, END, INSTANT, Collector
from perfscope.analyzers.readers.perfetto_trace.events import Events
from perfscope.analyzers.readers.perfetto_trace.framing import Data, Left, pieces
from perfscope.analyzers.readers.perfetto_trace.pairing import pair
from perfscope.analyzers.readers.perfetto_trace.tables import Tables
from perfscope.analyzers.trace import Rows, SliceKind, Source, Trace
from perfscope.analyzers.trace.columns import MISSING, Array
from perfscope.profiler.errors import DataError

FORMAT = "perfetto"

_LARGEST_NS = 1 << 62
CARRIED = frozenset(
    {
        "device_work", "host_ops", "launch_links", "op_links", "runtime_calls", "waiting_calls", "python_stack",
        "shapes", "autograd", "memory", "collectives", "sync_records", "steps",
    }
)  # fmt: skip
"""Keys of ``Trace.recorded`` that an export of ours carries whole: where there is none of it, there was none."""


def build(data: Data, shown: str) -> list[Trace]:
    """The traces in a file. ``DataError`` if it is cut off, corrupt, or holds no event."""
    left = Left()
    collector = Collector(shown)
    for piece in pieces(data, shown, left):
        collector.add(piece)
    if left.zstd:
        collector.unplaced["packets compressed with zstandard (unpack them with `traceconv decompress_packets`)"] = (
            left.zstd
        )
    rows = _events(collector)
    sources = _sources(collector, rows)
    if not sources:
        return [_trace(collector, rows, shown, None)]
    sequence = rows["sequence"]
    return [
        _trace(collector, {name: values[sequence == one] for name, values in rows.items()}, shown, said)
        for one, said in sources.items()
    ]


def _events(collector: Collector) -> Columns:
    """Slices, instants and samples with their times on one clock; ``event``: their row for the annotations."""
    unplaced = collector.unplaced
    if not len(collector.events):
        return _none()
    held = collector.events.take()
    held["event"] = np.arange(len(held["time_ns"]))
    keep = _on_one_clock(collector, held, "time_ns")
    kind = held["kind"]
    known = np.isin(kind, (BEGIN, END, INSTANT, COUNTER, COMPLETE))
    if (~known).any():
        unplaced["track events of other types"] += int((~known).sum())
    impossible = (held["time_ns"] >= _LARGEST_NS) | (held["time_ns"] <= -_LARGEST_NS)
    keep &= known & ~impossible
    if impossible.any():
        unplaced["impossible times"] += int(impossible.sum())
    marks = np.flatnonzero(keep & np.isin(kind, (BEGIN, END)))
    pairs = pair(held["track"][marks], held["time_ns"][marks], kind[marks] == END)
    for what, count in (
        ("slices that never end", pairs.never_ended),
        ("ends of slices that never began", pairs.never_begun),
    ):
        if count:
            unplaced[what] += count
    held["end_ns"][marks[pairs.begin]] = held["time_ns"][marks[pairs.end]]
    single = np.isin(kind, (INSTANT, COUNTER))
    held["end_ns"][single] = held["time_ns"][single]
    whole = np.zeros(len(kind), np.bool_)
    whole[marks[pairs.begin]] = True
    whole |= keep & (single | ((kind == COMPLETE) & (held["end_ns"] >= held["time_ns"])))
    return {name: values[whole] for name, values in held.items()}


def _none() -> Columns:
    names = ("time_ns", "end_ns", "sequence", "track", "kind", "name", "category", "flow", "event")
    return {**{name: np.empty(0, np.int64) for name in names}, "value": np.empty(0, np.float64)}


def _on_one_clock(collector: Collector, held: Columns, column: str) -> Array:
    """Bring times to the primary clock, in place; flags of the events whose clock is known."""
    clock = held["clock"]
    kinds = np.unique(clock).tolist()
    keep = np.ones(len(clock), np.bool_)
    if kinds == [kinds[0]] and kinds[0] != MISSING:
        return keep  # all on one clock: no snapshot is needed
    for one in kinds:
        mine = clock == one
        found = None if one == MISSING else collector.clocks.to_primary(one, held[column][mine])
        if found is None:
            keep[mine] = False
            collector.unplaced["events on a clock that no snapshot relates to the others"] += int(mine.sum())
        else:
            held[column][mine] = found
    return keep


def _sources(collector: Collector, rows: Columns) -> dict[int, Mapping[str, Any]]:
    """What an export of ours says of the traces in it, by sequence; empty for any other file."""
    category = collector.strings.code(words.SOURCE)
    chosen = np.flatnonzero((rows["category"] == category) & (rows["kind"] == INSTANT))
    found: dict[int, Mapping[str, Any]] = {}
    codes = collector.annotations.texts("source", rows["event"][chosen])
    for sequence, code in zip(rows["sequence"][chosen].tolist(), codes.tolist(), strict=True):
        try:
            said = json.loads(collector.strings.texts[code]) if code != MISSING else None
        except (json.JSONDecodeError, RecursionError):
            said = None
        if isinstance(said, dict):
            found.setdefault(sequence, said)
    return found


def _trace(collector: Collector, rows: Columns, shown: str, said: Mapping[str, Any] | None) -> Trace:
    unplaced: Counter[str] = Counter() if said is not None else Counter(collector.unplaced)
    tables = Tables(collector, Events(rows), own=said is not None, unplaced=unplaced)
    if said is None:
        _gpu(collector, tables)
    built = tables.build()
    if not any(len(built[name]) for name in ("slices", "calls", "kernels", "copies", "memory", "counters", "steps")):
        what = ", ".join(f"{count:,} {reason}" for reason, count in collector.unplaced.most_common(3))
        raise DataError(
            f"{shown}: {collector.packets:,} packets, but no slices and no counters" + (f" ({what})" if what else "")
        )
    source = Source(
        path=shown,
        format=FORMAT,
        rank=_number(said, "rank"),
        world_size=_number(said, "world_size"),
        backend=_text(said, "backend"),
        events_read=len(rows["event"]) + sum(unplaced.values()) + tables.gpu_events,
        events_unplaced=sum(unplaced.values()),
        unplaced={reason: count for reason, count in unplaced.items() if count},
        notes=_notes(tables, said),
        events_only=bool(said and said.get("events_only") is True),
    )
    return Trace(source=source, strings=collector.strings.texts, rows=built, recorded=_recorded(built, said))


def _gpu(collector: Collector, tables: Tables) -> None:
    """Stages and samples of drivers, beside the track events."""
    if len(collector.gpu.spans):
        spans = collector.gpu.spans.take()
        keep = _on_one_clock(collector, spans, "time_ns")
        tables.add_gpu_spans({name: values[keep] for name, values in spans.items()})
    if collector.gpu.samples:
        time, clock, _, code, value = zip(*collector.gpu.samples, strict=True)
        samples: Columns = {
            "time_ns": np.array(time, np.int64), "clock": np.array(clock, np.int64),
            "name": np.array(code, np.int64), "value": np.array(value, np.float64),
        }  # fmt: skip
        keep = _on_one_clock(collector, samples, "time_ns")
        tables.add_gpu_samples({name: values[keep] for name, values in samples.items()})


def _number(said: Mapping[str, Any] | None, key: str) -> int | None:
    value = said.get(key) if said is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _text(said: Mapping[str, Any] | None, key: str) -> str | None:
    value = said.get(key) if said is not None else None
    return value if isinstance(value, str) else None


def _recorded(rows: Mapping[str, Rows], said: Mapping[str, Any] | None) -> frozenset[str]:
    """What was recorded: in an export of ours what the reader of its source said, otherwise what is there."""
    declared = said.get("recorded") if said is not None else None
    if isinstance(declared, list):
        return frozenset(key for key in declared if isinstance(key, str)) & CARRIED
    kernels, copies, slices = rows["kernels"], rows["copies"], rows["slices"]
    checks = {
        "device_work": bool(len(kernels) or len(copies)),
        "host_ops": bool((slices["kind"] == SliceKind.OP).any()),
        "launch_links": bool((kernels["call"] >= 0).any() or (copies["call"] >= 0).any()),
        "op_links": bool((kernels["op"] >= 0).any() or (copies["op"] >= 0).any()),
        "runtime_calls": len(rows["calls"]) > 0,
        "python_stack": bool((slices["kind"] == SliceKind.PYTHON).any()),
        "shapes": bool((slices["shapes"] >= 0).any()),
        "autograd": bool((slices["sequence"] >= 0).any()),
        "memory": len(rows["memory"]) > 0,
        "collectives": bool((rows["collectives"]["elements_in"] >= 0).any()),
        "sync_records": len(rows["sync_records"]) > 0,
        "steps": len(rows["steps"]) > 0,
    }
    return frozenset(key for key, present in checks.items() if present)


def _notes(tables: Tables, said: Mapping[str, Any] | None) -> tuple[str, ...]:
    notes = []
    if said is not None:
        kind = said.get("format")
        notes.append(
            "an export of perfscope"
            + (f", made of {kind}" if isinstance(kind, str) and len(kind) < 40 else "")
            + ": what has no time (memory held, stacks, compiled programs) was not in it"
        )
    if tables.findings:
        notes.append(f"{tables.findings:,} findings that were drawn into it are not read; they are judged anew")
    for table in ("kernels", "copies"):
        work = tables.rows[table]
        orphans = int((work["call"] < 0).sum())
        if orphans and len(tables.rows["calls"]):
            notes.append(f"{orphans:,} of {len(work):,} {table} have no launch call in the trace; they are counted")
    return tuple(notes)
