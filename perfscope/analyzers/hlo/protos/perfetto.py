"""What we read of ``protos/perfetto/trace``: rare messages, and the parts of packets. Names are Perfetto's.

Packets of events are walked by columns (``readers/perfetto/wire.py``) and not decoded here.
"""

from __future__ import annotations

SCHEMA = """
ProcessDescriptor
  1 int32 pid
  6 string process_name
ThreadDescriptor
  1 int32 pid
  2 int64 tid
  5 string thread_name
CounterDescriptor
  3 enum unit
  4 int64 unit_multiplier
  5 bool is_incremental
TrackDescriptor
  1 uint64 uuid
  2 string name
  10 string static_name
  13 string atrace_name
  3 ProcessDescriptor process
  4 ThreadDescriptor thread
  5 uint64 parent_uuid
  8 CounterDescriptor counter
TrackEventDefaults
  11 uint64 track_uuid
TracePacketDefaults
  11 TrackEventDefaults track_event_defaults
  58 uint32 timestamp_clock_id
Clock
  1 uint32 clock_id
  2 uint64 timestamp
  3 bool is_incremental
  4 uint64 unit_multiplier_ns
ClockSnapshot
  1 *Clock clocks
  2 enum primary_trace_clock
"""
