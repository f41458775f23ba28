"""The parts of ``tsl/profiler/protobuf/xplane.proto`` that we read; numbers and names are XLA's.

In the data a map is a repeated message of key and value, and it is declared as that, so that duplicate entries are not
lost. Host names (``XSpace.hostnames``) are omitted on purpose.
"""

from __future__ import annotations

SCHEMA = """
XStat
  1 int64 metadata_id
  2 double double_value
  3 uint64 uint64_value
  4 int64 int64_value
  5 string str_value
  6 bytes bytes_value
  7 uint64 ref_value
XEvent
  1 int64 metadata_id
  2 int64 offset_ps
  3 int64 duration_ps
  4 *XStat stats
  5 int64 num_occurrences
XLine
  1 int64 id
  2 string name
  3 int64 timestamp_ns
  4 *XEvent events
  11 string display_name
XEventMetadata
  1 int64 id
  2 string name
  4 string display_name
  5 *XStat stats
XStatMetadata
  1 int64 id
  2 string name
XPlane
  1 int64 id
  2 string name
  3 *XLine lines
  4 *XPlane.EventMetadataEntry event_metadata
  5 *XPlane.StatMetadataEntry stat_metadata
  6 *XStat stats
XPlane.EventMetadataEntry
  1 int64 key
  2 XEventMetadata value
XPlane.StatMetadataEntry
  1 int64 key
  2 XStatMetadata value
XSpace
  1 *XPlane planes
  2 *string errors
"""
