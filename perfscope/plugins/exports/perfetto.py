"""Perfetto: all ranks in one protobuf trace, for ui.perfetto.dev and trace_processor.

One process per rank and device, one thread per host thread and stream; steps, allocator events, counters and findings
have their own tracks; arrows lead from a launch to its work; every argument keeps its name. Times are the traces' own,
whole nanoseconds. Spans of one track that overlap without nesting are on lanes below it. Data without a time (held
memory, segments, stacks, compiled programs) is left out: ``--to parquet`` keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from perfscope.model.errors import DataError
from perfscope.model.trace.columns import Array
from perfscope.model.wire import FIXED64, VARINT
from perfscope.plugins.exports.about import first_ns, found, has_times
from perfscope.plugins.exports.events import Argument, Texts, Track, Tracks
from perfscope.plugins.exports.export import Subject
from perfscope.plugins.exports.files import whole_file
from perfscope.plugins.exports.lanes import Placed, placed
from perfscope.plugins.exports.scene import Scene
from perfscope.plugins.exports.wire import (
    Piece,
    bytes_field,
    fixed64,
    nested,
    number_field,
    records,
    tag,
    text_field,
    varints,
)

BLOCK = 1 << 16
"""Begins and ends that are encoded at once: about 20 MB, whatever the size of the trace."""

_PACKET = 1  # Trace.packet
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60  # TracePacket
_CLEARED, _NEEDS = 1, 2  # TracePacket.SequenceFlags
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _UUID, _DOUBLE, _FLOW = 3, 4, 9, 10, 11, 44, 47  # TrackEvent
_CATEGORIES, _NAMES, _ARGUMENT_NAMES, _TEXTS = 1, 2, 3, 29  # InternedData
_BYTES = 3  # CounterDescriptor.Unit.UNIT_SIZE_BYTES
_FOLD = 32
"""Number of optional parts after which shapes are renumbered: a block has at most 2^16 shapes."""
_FIELDS = {"flag": 2, "uint": 3, "int": 4, "float": 5, "text": 17}  # DebugAnnotation


class Sequence:
    """Writes the packets of one sequence; each sequence in a file has its own number."""

    def __init__(self, *, number: int, texts: Texts, tracks: Tracks) -> None:
        self._texts, self._tracks = texts, tracks
        self._sequence = number_field(_SEQUENCE, number)
        self._head = self._sequence + number_field(_FLAGS, _NEEDS)
        self._begun = False
        self._known: dict[int, set[int]] = {_CATEGORIES: set(), _NAMES: set(), _TEXTS: set()}
        self._argument_names: dict[str, int] = {}

    def pieces(self, placed: Placed) -> Iterator[bytes]:
        """The packets of a group of events, after those of the tracks and strings that they refer to."""
        for uuid in np.unique(placed.events.track).tolist():
            yield self.describe(self._tracks[uuid])
        for begin in range(0, len(placed.rows), BLOCK):
            rows, ends = placed.rows[begin : begin + BLOCK], placed.ends[begin : begin + BLOCK]
            yield self._interned(placed, rows[~ends])
            yield b"".join(self._block(placed, rows, ends))

    def describe(self, track: Track) -> bytes:
        """The packets that describe a track, parents first; nothing if they are already written."""
        packets = []
        if not self._begun:
            self._begun = True
            packets.append(bytes_field(_PACKET, self._sequence, number_field(_FLAGS, _CLEARED | _NEEDS)))
        if self._tracks.is_new(track):
            if track.parent:
                packets.append(self.describe(self._tracks[track.parent]))
            packets.append(bytes_field(_PACKET, self._head, bytes_field(_DESCRIPTOR, *_descriptor(track))))
        return b"".join(packets)

    def _interned(self, placed: Placed, rows: Array) -> bytes:
        events = placed.events
        wanted: dict[int, list[Array]] = {_CATEGORIES: [events.category[rows]], _NAMES: [], _TEXTS: []}
        if events.kind != "counters":
            wanted[_NAMES].append(events.name[rows])
        fresh = []
        for argument in events.arguments:
            if argument.name not in self._argument_names:
                self._argument_names[argument.name] = len(self._argument_names) + 1
                iid = self._argument_names[argument.name]
                fresh.append(bytes_field(_ARGUMENT_NAMES, number_field(1, iid), text_field(2, argument.name)))
            if argument.value == "text":
                values = argument.values[rows]
                wanted[_TEXTS].append(values if argument.present is None else values[argument.present[rows]])
        for field, codes in wanted.items():
            known = self._known[field]
            for code in np.unique(np.concatenate(codes)).tolist() if codes else ():
                if code not in known:
                    known.add(code)
                    fresh.append(bytes_field(field, number_field(1, code + 1), text_field(2, self._texts.shown(code))))
        return bytes_field(_PACKET, self._head, bytes_field(_INTERNED, *fresh)) if fresh else b""

    def _block(self, placed: Placed, rows: Array, ends: Array) -> list[bytes]:
        """Packets of entries in order. Entries of one shape are encoded together."""
        events = placed.events
        time = np.where(ends, events.end_ns[rows], events.start_ns[rows])
        shape = np.where(ends, np.int64(-1), self._shapes(placed, rows))
        result = np.empty(len(rows), object)
        for item in np.unique(shape).tolist():
            chosen = np.flatnonzero(shape == item)
            held = rows[chosen]
            body: list[Piece] = [tag(_UUID, VARINT), varints(events.track[held])]
            if item == -1:
                body = [number_field(_TYPE, _END), *body]
            elif events.kind == "counters":
                assert events.value is not None
                body = [number_field(_TYPE, _COUNTER), *body, *self._category(placed, held)]
                body += [tag(_DOUBLE, FIXED64), fixed64(events.value[held])]
            else:
                begin = number_field(_TYPE, _BEGIN if events.kind == "slices" else _INSTANT)
                body = [begin, *body, *self._fields(placed, held)]
            packet = [tag(_TIMESTAMP, VARINT), varints(time[chosen]), self._head, *nested(_TRACK_EVENT, body)]
            result[chosen] = records(nested(_PACKET, packet), len(chosen))
        joined: list[bytes] = result.tolist()
        return joined

    @staticmethod
    def _shapes(placed: Placed, rows: Array) -> Array:
        """A number for each entry; entries with equal numbers have the same optional parts."""
        events = placed.events
        shape = (events.flow[rows] != 0).astype(np.int64)
        for index, argument in enumerate(argument for argument in events.arguments if argument.present is not None):
            if index % _FOLD == _FOLD - 1:  # make room for more bits
                shape = np.unique(shape, return_inverse=True)[1].astype(np.int64)
            present = np.ones(1, np.bool_) if argument.present is None else argument.present[rows]
            shape = shape << 1 | present
        return np.asarray(shape, np.int64)

    @staticmethod
    def _category(placed: Placed, held: Array) -> list[Piece]:
        return [tag(_CATEGORY, VARINT), varints(placed.events.category[held] + 1)]

    def _fields(self, placed: Placed, held: Array) -> list[Piece]:
        """Fields of events of one shape, for the rows ``held``."""
        events, first = placed.events, int(held[0])
        pieces = [*self._category(placed, held), tag(_NAME, VARINT), varints(events.name[held] + 1)]
        if events.flow[first]:
            pieces += [tag(_FLOW, FIXED64), fixed64(events.flow[held])]
        for argument in events.arguments:
            if argument.present is None or argument.present[first]:
                pieces += self._annotation(argument, held)
        return pieces

    def _annotation(self, argument: Argument, held: Array) -> list[Piece]:
        values = argument.values[held]
        name = number_field(1, self._argument_names[argument.name])
        field = _FIELDS[argument.value]
        if argument.value == "float":
            return nested(_ANNOTATION, [name, tag(field, FIXED64), fixed64(values.astype(np.float64))])
        if argument.value == "text":
            values = values.astype(np.int64) + 1
        return nested(_ANNOTATION, [name, tag(field, VARINT), varints(values)])


def _descriptor(track: Track) -> list[bytes]:
    fields = [number_field(1, track.uuid)]
    if track.parent:
        fields.append(number_field(5, track.parent))
    if track.kind == "process":
        fields.append(bytes_field(3, number_field(1, track.pid), text_field(6, track.name)))
    elif track.kind == "thread":
        fields.append(bytes_field(4, number_field(1, track.pid), number_field(2, track.tid), text_field(5, track.name)))
    else:
        fields.append(text_field(2, track.name))
    if track.kind == "counter":
        fields.append(bytes_field(8, number_field(3, _BYTES) if track.unit == "B" else b""))
    return fields


SUFFIX = ".pftrace.gz"
FOLDER = False


def write(subject: Subject, target: Path) -> list[str]:
    """Write ``subject`` to ``target``; gzip where it ends in ``.gz``. ``DataError``: nothing in it has a time."""
    traces = [trace for trace in subject.traces if has_times(trace)]
    if not traces:
        raise DataError(f"{subject.traces[0].source.path}: nothing in it has a time; `--to parquet` keeps its tables")
    tracks = Tracks()
    with whole_file(target) as stream:
        for index, trace in enumerate(traces):
            scene = Scene(trace, tracks, index=index, label=label_of(index, len(traces), trace.source.rank))
            sequence = Sequence(number=index + 1, texts=scene.texts, tracks=tracks)
            for track in scene.threads:  # also tracks without spans: allocator events name them
                stream.write(sequence.describe(track))
            for events in placed(scene.events(), tracks):
                for piece in sequence.pieces(events):
                    stream.write(piece)
        texts = Texts()
        sequence = Sequence(number=len(traces) + 1, texts=texts, tracks=tracks)
        for events in placed(found(subject.findings, texts, tracks, min(map(first_ns, traces))), tracks):
            for piece in sequence.pieces(events):
                stream.write(piece)
    return left_out(subject)


def label_of(index: int, count: int, rank: int | None) -> str:
    """Prefix of a trace's process names if a file has several traces."""
    if rank is not None:
        return f"rank {rank} · "
    return f"trace {index} · " if count > 1 else ""


def left_out(subject: Subject) -> list[str]:
    """Data that a timeline cannot hold, one sentence each."""
    remarks = []
    silent = sum(not has_times(trace) for trace in subject.traces)
    if silent:
        remarks.append(f"{silent} of {len(subject.traces)} traces have no times and are left out")
    kept = ("held", "segments", "tensors", "frames")
    rows = {name: sum(len(trace.rows[name]) for trace in subject.traces) for name in kept}
    left = [f"{count:,} rows of {name}" for name, count in rows.items() if count]
    if left:
        remarks.append(f"left out, because they have no time: {', '.join(left)}")
    apart = recorded_apart(subject)
    if apart:
        remarks.append(f"left out, because they were recorded apart from the timeline: {', '.join(apart)}")
    return remarks


def recorded_apart(subject: Subject) -> list[str]:
    """Data of the traces besides their tables, by kind."""
    kinds = {
        "detail recordings": sum(trace.detail is not None for trace in subject.traces),
        "op graphs": sum(trace.op_graph is not None for trace in subject.traces),
        "compiled programs": sum(len(trace.hlo) for trace in subject.traces),
        "logs of torch.compile": sum(trace.compile_log is not None for trace in subject.traces),
        "compilations of jax": sum(len(trace.compile_events) for trace in subject.traces),
        "reads by the host": sum(len(trace.host_reads) for trace in subject.traces),
        "flight records": sum(trace.flight_record is not None for trace in subject.traces),
    }
    return [f"{count:,} {what}" for what, count in kinds.items() if count]
