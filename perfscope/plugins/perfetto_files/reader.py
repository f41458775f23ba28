"""Perfetto protobuf traces (``*.pftrace``, ``*.perfetto-trace``, also gzipped): ours and those of other tools.

```
Trace { packet: [ TracePacket { timestamp, timestamp_clock_id, trusted_packet_sequence_id, sequence_flags,
          track_event { type, track_uuid, name, categories, debug_annotations, flow_ids },
          track_descriptor { uuid, parent_uuid, process, thread, counter }, interned_data, clock_snapshot,
          compressed_packets ... } ] }
```

The category of a slice determines its table (words of Kineto and rocprofv3 are known; our own exports use Kineto's).
Everything else is a host span of its track. Kernels and copies need an argument with their device; without it they are
spans. Instants are spans without length. Samples of counters are read. Other sources of data (ftrace, statistics, heap
and stack profiles) count as unplaced, by kind; descriptions of the recording are not counted. Host names, command lines
and arguments without a column of the model are not read.

Times are those of the trace's primary clock, in ns. An export of ours with several ranks is one trace per rank.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.analyzers.readers import Columns, open_bytes
from perfscope.model.documents import perfetto_vocabulary as words
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace, TraceBuilder
from perfscope.model.trace.builder import calls_that_wait
from perfscope.model.trace.columns import MISSING, Array
from perfscope.model.wire import BYTES, VARINT, Data, WireError, fields
from perfscope.plugins.perfetto_files.collect import BEGIN, COUNTER, END, INSTANT, Collector
from perfscope.plugins.perfetto_files.packets import PACKET, Packets
from perfscope.plugins.perfetto_files.state import Int
from perfscope.plugins.perfetto_files.tables import Events, Tables

FORMAT = "perfetto"

_LARGEST_NS = 1 << 62

CARRIED = frozenset(
    {
        "device_work", "host_ops", "launch_links", "op_links", "runtime_calls", "waiting_calls", "python_stack",
        "shapes", "autograd", "memory", "collectives", "sync_records", "steps",
    }
)  # fmt: skip
"""Keys of ``Trace.recorded`` that an export of ours carries completely: a recording without rows had no such data."""

MAX_BYTES = 16 << 30
"""Maximum decompressed bytes of a file; ring buffers of long recordings reach some GB."""

_SUFFIXES = (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz", ".perfetto-trace.pb")

_NUMBERS = frozenset({3, 8, 10, 13, 41, 42, 58, 79, 87, 98})
"""Fields of a packet that hold numbers."""

_MESSAGES = frozenset(
    {1, 2, 5, 6, 7, 9, 11, 12, 33, 34, 35, 36, 43, 44, 45, 50, 51, 52, 53, 54, 59, 60, 65, 66, 69, 72, 89, 107, 133}
)
"""Fields of a packet that hold messages and occur in the first packets of a file."""

_LOOKED_AT = 3
"""Number of packets whose fields must match: an XSpace or an HLO proto begins with the same byte."""


# Begins and ends of slices joined: on each track an end closes the slice that was begun last.


class Pairs(Struct, frozen=True, kw_only=True):
    """Slices as rows of their begins, and the rows of their ends."""

    begin: Int
    end: Int
    never_ended: int
    never_begun: int


def pair(track: Int, time: Int, is_end: Array) -> Pairs:
    """Join begins and ends; rows in the file's order, which decides at equal times. Shapes (n,)."""
    order = np.lexsort((time, track))
    ends, of = is_end[order], track[order]
    order, ends, of, alone = _without_lone_ends(order, ends, of)
    if not len(order):
        none = np.empty(0, np.int64)
        return Pairs(begin=none, end=none, never_ended=0, never_begun=alone)
    # The depth of a begin is counted after it, of an end before it, so it is equal for both of a slice.
    depth = _depth(ends, of) + ends
    by_level = np.lexsort((np.arange(len(order)), depth, of))  # On a level, begins and ends alternate.
    follows = by_level[1:]
    same = (depth[by_level[:-1]] == depth[follows]) & (of[by_level[:-1]] == of[follows])
    joined = same & ~ends[by_level[:-1]] & ends[follows]
    begin, end = order[by_level[:-1][joined]], order[follows[joined]]
    sort = np.argsort(begin, kind="stable")
    return Pairs(begin=begin[sort], end=end[sort], never_ended=int((~ends).sum()) - len(begin), never_begun=alone)


def _depth(ends: Array, track: Int) -> Int:
    """Return the number of open slices of the track after each entry; entries sorted by track."""
    total = np.cumsum(np.where(ends, -1, 1))
    first = np.concatenate(([True], np.diff(track) != 0))
    before = np.where(first, total - np.where(ends, -1, 1), 0)
    return total - before[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))]


def _without_lone_ends(order: Int, ends: Array, track: Int) -> tuple[Int, Array, Int, int]:
    """Return entries without ends of slices from before the recording: those that take the depth to a new low."""
    if not ends.any():
        return order, ends, track, 0
    depth = _depth(ends, track)
    # Lowest depth so far per track, 0 before it: shifted apart, so that one pass serves all tracks.
    positions = np.cumsum(np.concatenate(([0], np.diff(track) != 0)))
    apart = positions * (2 * len(order) + 1)
    lowest = np.minimum(np.minimum.accumulate(depth - apart) + apart, 0)
    before = np.concatenate(([0], lowest[:-1]))
    before[np.concatenate(([True], np.diff(track) != 0))] = 0
    lone = ends & (depth < before)
    keep = ~lone
    return order[keep], ends[keep], track[keep], int(lone.sum())


# Traces from the events of a Perfetto trace: one per trace of an export of ours, else one.


def build(data: Data, shown: str) -> list[Trace]:
    """Return the traces in a file. ``DataError`` if it is truncated, corrupt, or holds no event."""
    collector = Collector()
    for packet in Packets(data, shown):
        collector.add(packet)
    rows = _events(collector)
    sources = _sources(collector, rows)
    if not sources:
        return [_trace(collector, rows, shown, None)]
    sequence = rows["sequence"]
    return [
        _trace(collector, {name: values[sequence == one] for name, values in rows.items()}, shown, metadata)
        for one, metadata in sources.items()
    ]


def _events(collector: Collector) -> Columns:
    """Return slices, instants and samples with their times on one clock; ``event``: their row for the annotations."""
    unplaced = collector.unplaced
    held = collector.columns()
    if not collector.events:
        return held
    keep = _on_one_clock(collector, held)
    kind = held["kind"]
    known = np.isin(kind, (BEGIN, END, INSTANT, COUNTER))
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
    whole |= keep & single
    return {name: values[whole] for name, values in held.items()}


def _on_one_clock(collector: Collector, held: Columns) -> Array:
    """Convert times to the primary clock in place; return flags of the events whose clock is known."""
    clock = held["clock"]
    kinds = np.unique(clock).tolist()
    keep = np.ones(len(clock), np.bool_)
    if kinds == [kinds[0]] and kinds[0] != MISSING:
        return keep  # All are on one clock, so no snapshot is needed.
    for kind in kinds:
        mine = clock == kind
        result = None if kind == MISSING else collector.clocks.to_primary(kind, held["time_ns"][mine])
        if result is None:
            keep[mine] = False
            collector.unplaced["events on a clock that no snapshot relates to the others"] += int(mine.sum())
        else:
            held["time_ns"][mine] = result
    return keep


def _sources(collector: Collector, rows: Columns) -> dict[int, Mapping[str, Any]]:
    """Return the sources of the traces in an export of ours, by sequence; empty for any other file."""
    category = collector.strings.code(words.SOURCE)
    chosen = np.flatnonzero((rows["category"] == category) & (rows["kind"] == INSTANT))
    result: dict[int, Mapping[str, Any]] = {}
    codes = collector.annotations.texts("source", rows["event"][chosen])
    for sequence, code in zip(rows["sequence"][chosen].tolist(), codes.tolist(), strict=True):
        try:
            metadata = json.loads(collector.strings.strings[code]) if code != MISSING else None
        except (json.JSONDecodeError, RecursionError):
            metadata = None
        if isinstance(metadata, dict):
            result.setdefault(sequence, metadata)
    return result


def _trace(collector: Collector, rows: Columns, shown: str, metadata: Mapping[str, Any] | None) -> Trace:
    unplaced: Counter[str] = Counter() if metadata is not None else Counter(collector.unplaced)
    tables = Tables(collector, Events(rows), own=metadata is not None, unplaced=unplaced)
    built = tables.build()
    if not any(len(built[name]) for name in ("slices", "calls", "kernels", "copies", "memory", "counters", "steps")):
        what = ", ".join(f"{count:,} {reason}" for reason, count in collector.unplaced.most_common(3))
        raise DataError(
            f"{shown}: {collector.packets:,} packets, but no slices and no counters" + (f" ({what})" if what else "")
        )
    trace = TraceBuilder(shown, FORMAT)
    trace.strings, trace.rows, trace.unplaced = collector.strings.strings, built, unplaced
    trace.rank, trace.world_size, trace.backend = (
        _number(metadata, "rank"),
        _number(metadata, "world_size"),
        _text(metadata, "backend"),
    )
    trace.rank_source = _text(metadata, "rank_source") or "metadata of the export"
    trace.events = len(rows["event"]) + sum(unplaced.values())
    trace.events_only = bool(metadata and metadata.get("events_only") is True)
    trace.note(*_notes(trace, tables, metadata))
    declared = metadata.get("recorded") if metadata is not None else None
    if isinstance(declared, list):  # An export of ours has the facts of its source's reader.
        trace.record(*CARRIED.intersection(key for key in declared if isinstance(key, str)))
    else:
        trace.record_tables(without=("op_links",) if calls_that_wait(trace.rows) else ("op_links", "waiting_calls"))
    return trace.build()


def _number(metadata: Mapping[str, Any] | None, key: str) -> int | None:
    value = metadata.get(key) if metadata is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _text(metadata: Mapping[str, Any] | None, key: str) -> str | None:
    value = metadata.get(key) if metadata is not None else None
    return value if isinstance(value, str) else None


def _notes(trace: TraceBuilder, tables: Tables, metadata: Mapping[str, Any] | None) -> list[str]:
    notes = []
    if metadata is not None:
        kind = metadata.get("format")
        notes.append(
            "an export of perfscope"
            + (f", made of {kind}" if isinstance(kind, str) and len(kind) < 40 else "")
            + ": what has no time (memory held, stacks, compiled programs) was not in it"
        )
    if tables.findings:
        notes.append(f"{tables.findings:,} findings drawn in the export were not read; they are judged again")
    return [*notes, *trace.orphans("; they are counted")]


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is a Perfetto trace, by its name or the fields of its first packets."""
    if path.is_dir():
        return False
    return path.name.endswith(_SUFFIXES) or _begins_with_packets(head)


def _begins_with_packets(head: bytes) -> bool:
    seen = 0
    try:
        for packet in islice(fields(head, 0, len(head), lenient=True), _LOOKED_AT):
            if head[packet.begin] != PACKET or not _is_packet(head, packet.start, packet.end):
                return False
            seen += 1
    except WireError:
        return False
    return seen > 0


def _is_packet(head: bytes, start: int, end: int) -> bool:
    """Return whether every field in ``[start, end)``, as far as the head reaches, is one of a packet."""
    timed = False
    for number, kind, _, _, after in fields(head, start, min(end, len(head)), lenient=True):
        if kind == VARINT and number in _NUMBERS:
            timed = True
        elif kind == BYTES and number in _MESSAGES and after <= end:
            timed = timed or number >= 33  # The low numbers are fields of many messages.
        else:
            return False
    return timed


def read(path: Path) -> list[Trace]:
    """Return the traces in ``path``: one per rank of an export of ours, otherwise one.

    ``DataError``, one line, for a file that is empty, truncated, corrupt or holds no events.
    """
    shown = str(path)
    with open_bytes(path, MAX_BYTES) as data:
        if not len(data):
            raise DataError(f"{shown}: empty file")
        return build(data, shown)


__all__ = ["FORMAT", "read", "sniff"]
