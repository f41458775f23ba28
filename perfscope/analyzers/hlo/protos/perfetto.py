"""The parts of ``protos/perfetto/trace`` that we read; names are Perfetto's.

Names and texts are ``bytes``: Perfetto does not check that they are UTF-8.
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
  4 int64 unit_multiplier
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
EventName
  1 uint64 iid
  2 bytes name
InternedString
  1 uint64 iid
  2 bytes str
InternedData
  1 *EventName event_categories
  2 *EventName event_names
  3 *EventName debug_annotation_names
  29 *InternedString debug_annotation_string_values
DebugAnnotation
  1 uint64 name_iid
  10 bytes name
  2 ?bool bool_value
  3 ?uint64 uint_value
  4 ?int64 int_value
  5 ?double double_value
  6 ?bytes string_value
  7 ?uint64 pointer_value
  17 ?uint64 string_value_iid
TrackEvent
  9 enum type
  11 uint64 track_uuid
  3 *uint64 category_iids
  22 *bytes categories
  10 uint64 name_iid
  23 bytes name
  4 *DebugAnnotation debug_annotations
  47 *fixed64 flow_ids
  48 *fixed64 terminating_flow_ids
  30 ?int64 counter_value
  44 ?double double_counter_value
TracePacket
  8 uint64 timestamp
  58 uint32 timestamp_clock_id
  10 uint32 trusted_packet_sequence_id
  13 uint32 sequence_flags
  41 bool incremental_state_cleared
  11 TrackEvent track_event
  12 InternedData interned_data
  6 ClockSnapshot clock_snapshot
  60 TrackDescriptor track_descriptor
  44 ThreadDescriptor thread_descriptor
  59 TracePacketDefaults trace_packet_defaults
  50 bytes compressed_packets
  1 bytes ftrace_events
  2 bytes process_tree
  7 bytes sys_stats
  9 bytes process_stats
  37 bytes profile_packet
  39 bytes android_log
  52 bytes gpu_counter_event
  53 bytes gpu_render_stage_event
  54 bytes streaming_profile_packet
  57 bytes graphics_frame_event
  62 bytes vulkan_memory_event
  63 bytes gpu_log
  65 bytes vulkan_api_event
  66 bytes perf_sample
  71 bytes gpu_mem_total_event
  73 bytes memory_tracker_snapshot
  95 bytes etw_events
  133 bytes zstd_compressed_packets
"""
