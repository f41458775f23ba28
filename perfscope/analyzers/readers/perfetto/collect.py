"""Walks the packets of a file once and keeps events, arguments and tracks as columns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from perfscope.analyzers.hlo.protos import decode
from perfscope.analyzers.readers.columns import ColumnBuffer
from perfscope.analyzers.readers.perfetto.annotations import Annotations
from perfscope.analyzers.readers.perfetto.state import (
    CATEGORIES,
    NAMES,
    Clocks,
    Sequences,
    Track,
    codes_of_fields,
    is_sequence_clock,
    signed,
    track_of,
)
from perfscope.analyzers.readers.perfetto.wire import Buffer, Fields, Int, Piece, varint, walk
from perfscope.model.trace import TraceBuilder
from perfscope.model.trace.columns import MISSING, Array

BEGIN, END, INSTANT, COUNTER, COMPLETE = 1, 2, 3, 4, 100
"""Types of events: TrackEvent's own, and a legacy event with a duration."""

_TRACK_EVENT, _INTERNED, _SNAPSHOT, _DESCRIPTOR, _DEFAULTS = 11, 12, 6, 60, 59
_THREAD = 44
_DETAILS = {
    1: "ftrace events", 2: "process trees", 7: "system statistics", 9: "process statistics", 37: "heap profiles",
    39: "android logs", 52: "GPU counters", 53: "GPU render stages", 54: "sampled stacks", 57: "graphics frames",
    62: "vulkan memory events", 63: "gpu logs",
    65: "vulkan calls", 66: "perf samples", 71: "gpu memory totals", 73: "memory snapshots", 95: "etw events",
}  # fmt: skip
"""Packets with events that have no place in the model, by field. What is in no list describes the recording."""
_ID = (1 << 30) - 1
"""Bits of a process or thread id that make the number of its track."""
_PHASES = {ord("X"): COMPLETE, ord("B"): BEGIN, ord("E"): END, ord("I"): INSTANT, ord("i"): INSTANT}


class Collector:
    """The events of a file. Feed it the pieces in their order."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.strings = TraceBuilder()
        self.sequences = Sequences(self.strings)
        self.clocks = Clocks()
        self.tracks: dict[int, Track] = {}
        self.events = ColumnBuffer()
        self.annotations = Annotations(self.strings, self.sequences)
        self.unplaced: Counter[str] = Counter()
        self.packets = 0

    def add(self, piece: Piece) -> None:
        """Take in one piece. ``DataError`` if a message in it is none."""
        buffer, count = piece.buffer, len(piece.start)
        self.packets += count
        fields = walk(buffer, piece.start, piece.end, self.shown)
        sequence = fields.of(10).numbers().column(count, 0)
        flags = fields.of(13).numbers().column(count, 0)
        generation = self.sequences.generations(sequence, flags, fields.of(41).numbers().column(count, 0))
        interned = fields.of(_INTERNED).messages()
        if len(interned.row):
            self.sequences.intern(buffer, interned, generation[interned.row], self.shown)
        for row, start, end in _spans(fields.of(_DEFAULTS)):
            result = decode("perfetto.TracePacketDefaults", buffer.data[start:end], self.shown)
            self.sequences.defaults[int(generation[row])] = (
                result.timestamp_clock_id,
                result.track_event_defaults.track_uuid,
            )
        for _, start, end in _spans(fields.of(_DESCRIPTOR)):
            track = track_of(decode("perfetto.TrackDescriptor", buffer.data[start:end], self.shown))
            self.tracks[track.uuid] = track.with_older(self.tracks.get(track.uuid))
        for row, start, end in _spans(fields.of(_THREAD)):
            thread = decode("perfetto.ThreadDescriptor", buffer.data[start:end], self.shown)
            uuid = unnamed_track(int(sequence[row]))
            self.tracks[uuid] = Track(uuid=uuid, pid=thread.pid, tid=thread.tid, thread_name=thread.thread_name)
        time, clock = self._times(buffer, fields, sequence, generation, count)
        for number, what in _DETAILS.items():
            seen = int((fields.number == number).sum())
            if seen:
                self.unplaced[what] += seen
        events = fields.of(_TRACK_EVENT).messages()
        if len(events.row):
            positions = events.row
            self._track_events(
                buffer, events, time[positions], clock[positions], sequence[positions], generation[positions]
            )

    def _times(self, buffer: Buffer, fields: Fields, sequence: Int, generation: Int, count: int) -> tuple[Int, Int]:
        """Time of each packet in ns, and the machine's clock it is on; ``MISSING``: on a clock that nobody defined."""
        time = fields.of(8).numbers().column(count, MISSING)
        clock = fields.of(58).numbers().column(count, 0)
        kinds, inverse = np.unique(generation, return_inverse=True)
        default = np.array([self.sequences.defaults.get(kind, (0, 0))[0] for kind in kinds.tolist()], np.int64)[inverse]
        clock = np.where(clock == 0, np.where(default == 0, self.clocks.primary, default), clock)
        timed = np.zeros(count, np.bool_)
        timed[fields.of(8).row] = True
        own = np.zeros(count, np.bool_)
        for one in np.unique(clock).tolist():
            own |= (clock == one) & is_sequence_clock(one)
        done = 0
        snapshots = [*_spans(fields.of(_SNAPSHOT)), (count, 0, 0)]
        for row, start, end in snapshots:  # a clock of a sequence means what the snapshot before it says
            if own[done:row].any():
                self._own_times(time, clock, sequence, timed & own, done, row)
            done = row
            if end:
                self.clocks.add(
                    int(sequence[row]), decode("perfetto.ClockSnapshot", buffer.data[start:end], self.shown)
                )
        return time, clock

    def _own_times(self, time: Int, clock: Int, sequence: Int, chosen: Array, low: int, high: int) -> None:
        rows = low + np.flatnonzero(chosen[low:high])
        pairs = np.stack((sequence[rows], clock[rows]))
        for one, of in np.unique(pairs, axis=1).T.tolist():
            mine = rows[(sequence[rows] == one) & (clock[rows] == of)]
            found = self.clocks.of_sequence(one, of, time[mine])
            if found is None:
                clock[mine] = MISSING
            else:
                time[mine], clock[mine] = found

    def _track_events(
        self, buffer: Buffer, messages: Fields, time: Int, clock: Int, sequence: Int, generation: Int
    ) -> None:
        count = len(messages.row)
        first = len(self.events)
        fields = walk(buffer, messages.a, messages.b, self.shown)
        kinds, inverse = np.unique(generation, return_inverse=True)
        default = np.array([signed(self.sequences.defaults.get(kind, (0, 0))[1]) for kind in kinds.tolist()], np.int64)
        track = default[inverse]
        track = np.where(track == 0, unnamed_track(sequence), track)
        told = fields.of(11).numbers()
        track[told.row] = told.a
        double = fields.of(44).numbers()
        value = fields.of(30).numbers().column(count, 0).astype(np.float64)
        value[double.row] = double.a.view(np.float64)
        columns = {
            "time_ns": time,
            "end_ns": np.full(count, MISSING, np.int64),
            "clock": clock,
            "sequence": sequence,
            "track": track,
            "kind": fields.of(9).numbers().column(count, 0),
            "name": self._texts(buffer, fields, generation, NAMES, 10, 23),
            "category": self._texts(buffer, fields, generation, CATEGORIES, 3, 22),
            "flow": self._flows(buffer, fields, count),
            "value": value,
        }
        legacy = fields.of(6).messages()
        if len(legacy.row):
            self._legacy(buffer, legacy, columns, generation)
        extra = int(np.isin(fields.number, (12, 46)).sum())
        if extra:
            self.unplaced["extra counter values of slices"] += extra
        self.events.append(columns)
        self.annotations.add(buffer, fields.of(4).messages(), first, generation, self.shown)

    def _texts(self, buffer: Buffer, fields: Fields, generation: Int, kind: int, number: int, plain: int) -> Int:
        """Codes of names or (first) categories, interned or written out; ``MISSING`` where there is none."""
        result = np.full(len(generation), MISSING, np.int64)
        interned = fields.of(number)
        interned = interned.take(np.arange(len(interned.row))[::-1])  # the first of several wins
        single = interned.numbers()
        result[single.row] = self.sequences.codes(kind, generation[single.row], single.a)
        packed = interned.messages()
        packed = packed.take(packed.b > packed.a)
        if len(packed.row):  # packed numbers: the first of them
            result[packed.row] = self.sequences.codes(kind, generation[packed.row], varint(buffer, packed.a)[0])
        written = fields.of(plain).messages()
        written = written.take(np.arange(len(written.row))[::-1])
        result[written.row] = codes_of_fields(self.strings, written, buffer)
        return result

    @staticmethod
    def _flows(buffer: Buffer, fields: Fields, count: int) -> Int:
        """The first arrow that each event is on; 0: none."""
        flow = np.zeros(count, np.int64)
        for number in (42, 48, 36, 47):
            held = fields.of(number)
            single = held.numbers()
            flow[single.row[::-1]] = single.a[::-1]
            packed = held.messages()
            if number in (47, 48) and len(packed.row):
                whole = packed.take(packed.b - packed.a >= 8)
                flow[whole.row[::-1]] = buffer.words[whole.a[::-1]].view(np.int64)
        return flow

    def _legacy(self, buffer: Buffer, legacy: Fields, columns: dict[str, Array], generation: Int) -> None:
        """Events in the form of Chrome's JSON: their phase is their type, their duration is in us."""
        fields = walk(buffer, legacy.a, legacy.b, self.shown)
        size = len(legacy.row)
        phase = fields.of(2).numbers().column(size, 0)
        kinds = np.array([_PHASES.get(one, 0) for one in phase.tolist()], np.int64)
        positions = legacy.row
        columns["kind"][positions] = np.where(columns["kind"][positions] == 0, kinds, columns["kind"][positions])
        duration = fields.of(3).numbers().column(size, MISSING)
        whole = (kinds == COMPLETE) & (duration >= 0) & (duration < 1 << 52)
        columns["end_ns"][positions] = np.where(
            whole, columns["time_ns"][positions] + duration * 1_000, columns["end_ns"][positions]
        )
        named = fields.of(1).numbers().column(size, 0)
        names = self.sequences.codes(NAMES, generation[positions], named)
        columns["name"][positions] = np.where(columns["name"][positions] == MISSING, names, columns["name"][positions])
        self._overridden(fields, columns["track"], positions)
        unknown = int((kinds == 0).sum())
        if unknown:
            self.unplaced["legacy events of other phases"] += unknown

    def _overridden(self, fields: Fields, track: Array, positions: Int) -> None:
        """Legacy events of another thread than the one that wrote them: they name it by its ids."""
        told = fields.of(19).numbers()
        pid = fields.of(18).numbers().column(len(positions), 0)[told.row] & _ID
        tid = told.a & _ID
        uuid = -(1 << 61) - (pid << 30) - tid
        track[positions[told.row]] = uuid
        for one, process, thread in set(zip(uuid.tolist(), pid.tolist(), tid.tolist(), strict=True)):
            self.tracks[one] = Track(uuid=one, pid=process, tid=thread)


def _spans(fields: Fields) -> list[tuple[int, int, int]]:
    """(message, begin, end) of fields that hold bytes."""
    held = fields.messages()
    return list(zip(held.row.tolist(), held.a.tolist(), held.b.tolist(), strict=True))


def unnamed_track(sequence: Any) -> Any:
    """A number for the track of events that name none: the thread that their sequence was written by."""
    return -(1 << 62) - sequence
