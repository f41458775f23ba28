"""Perfetto protobuf traces (``*.pftrace``, ``*.perfetto-trace``, also gzipped): our own exports, and those of others.

```
Trace { packet: [ TracePacket { timestamp, timestamp_clock_id, trusted_packet_sequence_id, sequence_flags,
          track_event { type, track_uuid, name, categories, debug_annotations, flow_ids },
          track_descriptor { uuid, parent_uuid, process, thread, counter }, interned_data, clock_snapshot,
          gpu_render_stage_event, gpu_counter_event, compressed_packets ... } ] }
```

Slices go to the table that their category stands for (Kineto's words and those of rocprofv3 are known; our own
exports use Kineto's), everything else is a host span of its track. Kernels and copies need an argument that says
their device; without it they are spans like others. Instants are spans without length. Samples of counters, stages
and counters of GPU drivers are read. Other sources of data (ftrace, statistics, heap and stack profiles) count as
unplaced, by what they are; descriptions of the recording count as nothing. Host names, command lines and arguments
that the model has no column for are not read.

Times are those of the trace's primary clock, in ns. An export of ours with several ranks gives a trace for each.
"""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.readers._bytes import open_bytes
from perfscope.analyzers.readers.perfetto_trace.build import FORMAT, build
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError

__all__ = ["FORMAT", "read", "sniff"]

MAX_BYTES = 16 << 30
"""Unpacked bytes of a file; ring buffers of long recordings come to some GB."""

_SUFFIXES = (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz", ".perfetto-trace.pb")
_PACKET = 0x0A
_NUMBERS = frozenset({3, 8, 10, 13, 41, 42, 58, 79, 87, 98})
"""Fields of a packet that hold numbers."""
_MESSAGES = frozenset(
    {1, 2, 5, 6, 7, 9, 11, 12, 33, 34, 35, 36, 43, 44, 45, 50, 51, 52, 53, 54, 59, 60, 65, 66, 69, 72, 89, 107, 133}
)
"""Fields of a packet that hold messages, those that stand in the first packets of a file."""
_LOOKED_AT = 3
"""Packets whose fields must all be such: an XSpace or an HLO proto begins with the same byte."""


def sniff(path: Path, head: bytes) -> bool:
    """True for a Perfetto trace by its name, or by the fields of its first packets."""
    if path.is_dir():
        return False
    return path.name.endswith(_SUFFIXES) or _begins_with_packets(head)


def _begins_with_packets(head: bytes) -> bool:
    place = seen = 0
    while place < len(head) and seen < _LOOKED_AT:
        if head[place] != _PACKET:
            return False
        length, place = _varint(head, place + 1)
        if not length or not _is_packet(head, place, place + length):
            return False
        place += length
        seen += 1
    return seen > 0


def _is_packet(head: bytes, place: int, end: int) -> bool:
    """True if every field in ``[place, end)``, as far as the head reaches, is one of a packet."""
    timed = False
    while place < min(end, len(head)):
        key, place = _varint(head, place)
        number, kind = key >> 3, key & 7
        if kind == 0 and number in _NUMBERS:
            _, place = _varint(head, place)
            timed = True
        elif kind == 2 and number in _MESSAGES:
            size, place = _varint(head, place)
            timed = timed or number >= 33  # the low numbers are those of many messages
            place += size
            if place > end:
                return False
        else:
            return False
    return timed


def _varint(head: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(head) and shift < 70:
        byte = head[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            break
        shift += 7
    return value, place


def read(path: Path) -> list[Trace]:
    """The traces in ``path``: one for each rank of an export of ours, otherwise one.

    ``DataError``, one line, for a file that is empty, cut off, corrupt or holds no events.
    """
    shown = str(path)
    with open_bytes(path, MAX_BYTES) as data:
        if not len(data):
            raise DataError(f"{shown}: empty file")
        return build(data, shown)
