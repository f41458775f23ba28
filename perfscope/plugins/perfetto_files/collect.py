"""One pass over the packets of a file that keeps events, arguments and tracks as columns.

A sequence of packets interns strings and sets the clock and track of its events once. All of that is lost when the
sequence clears its state.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.readers import Columns
from perfscope.model.trace import TraceBuilder
from perfscope.model.trace.columns import MISSING
from perfscope.plugins.perfetto_files.annotations import KNOWN, Annotations
from perfscope.plugins.perfetto_files.state import Clocks, Track, is_sequence_clock, signed, track_of

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Types of track events."""

_COLUMNS = ("time_ns", "clock", "sequence", "track", "kind", "name", "category", "flow")
_CLEARED = 1
"""Bit of ``sequence_flags``."""
_OTHERS = {
    "ftrace_events": "ftrace events",
    "process_tree": "process trees",
    "sys_stats": "system statistics",
    "process_stats": "process statistics",
    "profile_packet": "heap profiles",
    "android_log": "android logs",
    "gpu_counter_event": "GPU counters",
    "gpu_render_stage_event": "GPU render stages",
    "streaming_profile_packet": "sampled stacks",
    "graphics_frame_event": "graphics frames",
    "vulkan_memory_event": "vulkan memory events",
    "gpu_log": "gpu logs",
    "vulkan_api_event": "vulkan calls",
    "perf_sample": "perf samples",
    "gpu_mem_total_event": "gpu memory totals",
    "memory_tracker_snapshot": "memory snapshots",
    "etw_events": "etw events",
    "zstd_compressed_packets": "packets compressed with zstandard (unpack them with `traceconv decompress_packets`)",
}
"""Packets with events that have no place in the model. Packets in no list describe the recording."""


class _Sequence(Struct):
    """State of a sequence since it was cleared: strings by number as codes, and defaults."""

    categories: dict[int, int] = field(default_factory=dict)
    names: dict[int, int] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    texts: dict[int, bytes] = field(default_factory=dict)
    clock: int = 0
    track: int = 0


class Collector:
    """The events of a file, packet by packet in their order."""

    def __init__(self) -> None:
        self.strings = TraceBuilder()
        self.clocks = Clocks()
        self.tracks: dict[int, Track] = {}
        self.annotations = Annotations(self.strings)
        self.unplaced: Counter[str] = Counter()
        self.packets = self.events = 0
        self._integers = [array("q") for _ in _COLUMNS]
        self._values = array("d")
        self._sequences: dict[int, _Sequence] = {}
        self._codes: dict[bytes, int] = {}

    def add(self, packet: Any) -> None:
        """Add a packet."""
        self.packets += 1
        number = packet.trusted_packet_sequence_id
        sequence = self._sequences.get(number)
        if sequence is None or packet.sequence_flags & _CLEARED or packet.incremental_state_cleared:
            sequence = self._sequences[number] = _Sequence()
        if packet.HasField("interned_data"):
            self._intern(sequence, packet.interned_data)
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            sequence.clock = defaults.timestamp_clock_id
            sequence.track = signed(defaults.track_event_defaults.track_uuid)
        if not packet.HasField("track_event"):
            self._describe(number, packet)
            self._time(sequence, number, packet)  # A clock may count from packet to packet.
            return
        time, clock = self._time(sequence, number, packet)
        event = packet.track_event
        name = self._code(event.name) if event.name else sequence.names.get(event.name_iid, MISSING)
        category = MISSING
        if event.categories:
            category = self._code(event.categories[0])
        elif event.category_iids:
            category = sequence.categories.get(event.category_iids[0], MISSING)
        flows = event.flow_ids or event.terminating_flow_ids
        row = (
            time,
            clock,
            number,
            signed(event.track_uuid) or sequence.track or unnamed_track(number),
            event.type,
            name,
            category,
            signed(flows[0]) if flows else 0,
        )
        for column, value in zip(self._integers, row, strict=True):
            column.append(value)
        self._values.append(event.double_counter_value or event.counter_value)
        for annotation in event.debug_annotations:
            argument = sequence.arguments.get(annotation.name_iid) or annotation.name.decode("utf-8", "replace")
            if argument in KNOWN:
                self.annotations.add(argument, self.events, annotation, sequence.texts)
        self.events += 1

    def columns(self) -> Columns:
        """Return all events; ``event``: their row for the annotations. ``end_ns`` is not set yet."""
        columns: Columns = dict(zip(_COLUMNS, map(np.asarray, self._integers), strict=True))
        end, value = np.full(self.events, MISSING, np.int64), np.asarray(self._values)
        return {**columns, "end_ns": end, "value": value, "event": np.arange(self.events)}

    def _code(self, raw: bytes) -> int:
        code = self._codes.get(raw)
        if code is None:
            code = self._codes[raw] = self.strings.code(raw.decode("utf-8", "replace"))
        return code

    def _intern(self, sequence: _Sequence, interned: Any) -> None:
        sequence.categories.update((one.iid, self._code(one.name)) for one in interned.event_categories)
        sequence.names.update((one.iid, self._code(one.name)) for one in interned.event_names)
        sequence.arguments.update(
            (one.iid, one.name.decode("utf-8", "replace")) for one in interned.debug_annotation_names
        )
        sequence.texts.update((one.iid, one.str) for one in interned.debug_annotation_string_values)

    def _describe(self, number: int, packet: Any) -> None:
        """Add the descriptions in a packet without an event."""
        if packet.HasField("track_descriptor"):
            track = track_of(packet.track_descriptor)
            self.tracks[track.uuid] = track.with_older(self.tracks.get(track.uuid))
        if packet.HasField("thread_descriptor"):
            thread, uuid = packet.thread_descriptor, unnamed_track(number)
            self.tracks[uuid] = Track(uuid=uuid, pid=thread.pid, tid=thread.tid, thread_name=thread.thread_name)
        if packet.HasField("clock_snapshot"):
            self.clocks.add(number, packet.clock_snapshot)
        for described, _ in packet.ListFields():
            if described.name in _OTHERS:
                self.unplaced[_OTHERS[described.name]] += 1

    def _time(self, sequence: _Sequence, number: int, packet: Any) -> tuple[int, int]:
        """Return a packet's time in ns and its machine clock; ``MISSING`` for an undefined clock."""
        time = signed(packet.timestamp)
        clock = packet.timestamp_clock_id or sequence.clock or self.clocks.primary
        return self.clocks.of_sequence(number, clock, time) if is_sequence_clock(clock) else (time, clock)


def unnamed_track(sequence: int) -> int:
    """Return the number of a sequence's default track: the thread that wrote it."""
    return -(1 << 62) - sequence
