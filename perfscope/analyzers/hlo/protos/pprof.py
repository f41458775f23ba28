"""The parts of pprof's ``profile.proto`` (``perftools.profiles``) that we read; numbers and names are pprof's."""

from __future__ import annotations

SCHEMA = """
ValueType
  1 int64 type
  2 int64 unit
Label
  1 int64 key
  2 int64 str
  3 int64 num
Sample
  1 *uint64 location_id
  2 *int64 value
  3 *Label label
Line
  1 uint64 function_id
  2 int64 line
Location
  1 uint64 id
  4 *Line line
Function
  1 uint64 id
  2 int64 name
  4 int64 filename
Profile
  1 *ValueType sample_type
  2 *Sample sample
  4 *Location location
  5 *Function function
  6 *string string_table
"""
