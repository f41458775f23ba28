"""The parts of ``xla/service/hlo.proto`` and ``xla/xla_data.proto`` that we read; numbers and names are XLA's.

For literals, only 32-bit integers (for the trip counts of loops) and floating-point numbers (to detect zeros) are read.
"""

from __future__ import annotations

SCHEMA = """
PaddingConfig
  1 *PaddingConfig.PaddingConfigDimension dimensions
PaddingConfig.PaddingConfigDimension
  1 int64 edge_padding_low
  2 int64 edge_padding_high
  3 int64 interior_padding
TileProto
  1 *int64 dimensions
LayoutProto
  1 *int64 minor_to_major
  6 *TileProto tiles
  7 int64 element_size_in_bits
  8 int64 memory_space
ShapeProto
  2 enum element_type
  3 *int64 dimensions
  6 *bool is_dynamic_dimension
  4 *ShapeProto tuple_shapes
  5 LayoutProto layout
Payload
  1 bytes value
  2 int64 id
OpMetadata
  1 string op_type
  2 string op_name
  3 string source_file
  4 int32 source_line
  12 string deduplicated_name
  15 int32 stack_frame_id
  16 string scheduling_name
WindowDimension
  1 int64 size
  2 int64 stride
  3 int64 padding_low
  4 int64 padding_high
  5 int64 window_dilation
  6 int64 base_dilation
  7 bool window_reversal
Window
  1 *WindowDimension dimensions
GatherDimensionNumbers
  1 *int64 offset_dims
  2 *int64 collapsed_slice_dims
  3 *int64 start_index_map
  4 int64 index_vector_dim
  5 *int64 operand_batching_dims
  6 *int64 start_indices_batching_dims
ScatterDimensionNumbers
  1 *int64 update_window_dims
  2 *int64 inserted_window_dims
  3 *int64 scatter_dims_to_operand_dims
  4 int64 index_vector_dim
  5 *int64 input_batching_dims
  6 *int64 scatter_indices_batching_dims
ConvolutionDimensionNumbers
  7 int64 input_batch_dimension
  8 int64 input_feature_dimension
  11 *int64 input_spatial_dimensions
  3 int64 kernel_input_feature_dimension
  4 int64 kernel_output_feature_dimension
  6 *int64 kernel_spatial_dimensions
  9 int64 output_batch_dimension
  10 int64 output_feature_dimension
  12 *int64 output_spatial_dimensions
DotDimensionNumbers
  1 *int64 lhs_contracting_dimensions
  2 *int64 rhs_contracting_dimensions
  3 *int64 lhs_batch_dimensions
  4 *int64 rhs_batch_dimensions
RaggedDotDimensionNumbers
  1 DotDimensionNumbers dot_dimension_numbers
  2 *int64 lhs_ragged_dimensions
  3 *int64 rhs_group_dimensions
FrontendAttributes
  1 *FrontendAttributes.MapEntry map
FrontendAttributes.MapEntry
  1 string key
  2 string value
MeshProto
  1 *MeshProto.MeshAxis axes
  2 *int64 device_ids
  3 MeshProto.IotaTransform iota_transform
MeshProto.MeshAxis
  1 string name
  2 int64 size
MeshProto.IotaTransform
  1 *int64 reshape_dims
  2 *int64 transpose_perm
AxisRefProto
  1 int64 mesh_axis_index
  2 AxisRefProto.SubAxis sub_axis_info
AxisRefProto.SubAxis
  1 int64 pre_size
  2 int64 size
NamedShardingProto
  2 MeshProto mesh
  3 *NamedShardingProto.DimensionSharding dim_shardings
  5 *AxisRefProto unreduced_axes
  7 *AxisRefProto manual_axes
NamedShardingProto.DimensionSharding
  1 *AxisRefProto axes
OpSharding
  1 enum type
  3 *int64 tile_assignment_dimensions
  4 *int64 tile_assignment_devices
  5 *OpSharding tuple_shardings
  6 bool replicate_on_last_tile_dim
  8 *enum last_tile_dims
  9 *int64 iota_reshape_dims
  10 *int32 iota_transpose_perm
  14 NamedShardingProto named_sharding
ReplicaGroup
  1 *int64 replica_ids
MeshAxesReplicaGroupListProto
  1 MeshProto mesh
  2 *AxisRefProto axes
IotaReplicaGroupListProto
  1 int64 num_replica_groups
  2 int64 num_devices_per_group
  3 *int64 iota_reshape_dims
  4 *int32 iota_transpose_perm
CollectiveDeviceListProto
  1 *ReplicaGroup replica_groups
SourceTarget
  1 int64 source
  2 int64 target
PrecisionConfig
  1 *enum operand_precision
  2 enum algorithm
OutputOperandAliasing
  1 *int64 output_shape_index
  2 int64 operand_index
  3 *int64 operand_shape_index
LiteralProto
  4 *int32 s32s
  6 *uint32 u32s
  8 *float f32s
  9 *double f64s
  11 bytes f16s
  13 bytes bf16s
HloInstructionProto
  1 string name
  2 string opcode
  3 ShapeProto shape
  7 OpMetadata metadata
  8 LiteralProto literal
  9 int64 parameter_number
  11 string fusion_kind
  13 int64 tuple_index
  14 *int64 dimensions
  15 Window window
  16 ConvolutionDimensionNumbers convolution_dimension_numbers
  50 int64 feature_group_count
  58 int64 batch_group_count
  17 *HloInstructionProto.SliceDimensions slice_dimensions
  20 *int64 dynamic_slice_sizes
  21 PaddingConfig padding_config
  26 int64 channel_id
  28 string custom_call_target
  30 DotDimensionNumbers dot_dimension_numbers
  90 RaggedDotDimensionNumbers ragged_dot_dimension_numbers
  31 enum fft_type
  32 *int64 fft_length
  63 string comparison_direction
  33 GatherDimensionNumbers gather_dimension_numbers
  34 *int64 gather_slice_sizes
  35 int64 id
  36 *int64 operand_ids
  37 *int64 control_predecessor_ids
  38 *int64 called_computation_ids
  40 OpSharding sharding
  43 bytes backend_config
  99 Payload backend_config_payload
  49 *ReplicaGroup replica_groups
  71 bool use_global_device_ids
  60 bool is_stable
  48 ScatterDimensionNumbers scatter_dimension_numbers
  51 PrecisionConfig precision_config
  52 *SourceTarget source_target_pairs
  56 bool constrain_layout
  57 *ShapeProto operand_shapes_with_layout
  65 bool custom_call_has_side_effect
  74 *OutputOperandAliasing output_operand_aliasing
  67 bool indices_are_sorted
  68 FrontendAttributes frontend_attributes
  69 bool unique_indices
  79 string async_execution_thread
  87 CollectiveDeviceListProto collective_device_list
  92 IotaReplicaGroupListProto iota_collective_device_list
  93 MeshAxesReplicaGroupListProto mesh_axes_replica_group_list
HloInstructionProto.SliceDimensions
  1 int64 start
  2 int64 limit
  3 int64 stride
HloComputationProto
  1 string name
  2 *HloInstructionProto instructions
  5 int64 id
  6 int64 root_id
HloScheduleProto
  1 *HloScheduleProto.SequencesEntry sequences
HloScheduleProto.InstructionSequence
  1 *int64 instruction_ids
HloScheduleProto.SequencesEntry
  1 int64 key
  2 HloScheduleProto.InstructionSequence value
StackFrameIndexProto
  1 *string file_names
  2 *string function_names
  3 *StackFrameIndexProto.FileLocation file_locations
  4 *StackFrameIndexProto.StackFrame stack_frames
StackFrameIndexProto.FileLocation
  1 int32 file_name_id
  2 int32 function_name_id
  3 int32 line
StackFrameIndexProto.StackFrame
  1 int32 file_location_id
  2 int32 parent_frame_id
DeviceAssignmentProto
  1 int32 replica_count
  2 int32 computation_count
HloInputOutputAliasProto
  1 *HloInputOutputAliasProto.AliasEntryProto entries
HloInputOutputAliasProto.AliasEntryProto
  1 *int64 output_shape_index
  2 int64 parameter_number
  3 *int64 parameter_shape_index
  4 enum kind
HloBufferDonorProto
  1 *HloBufferDonorProto.BufferDonorEntryProto entries
HloBufferDonorProto.BufferDonorEntryProto
  1 int64 parameter_number
  2 *int64 parameter_shape_index
HloModuleProto
  1 string name
  2 string entry_computation_name
  6 int64 entry_computation_id
  3 *HloComputationProto computations
  5 int64 id
  7 HloScheduleProto schedule
  8 HloInputOutputAliasProto input_output_alias
  14 *OpSharding spmd_parameters_shardings
  18 HloBufferDonorProto buffer_donor
  22 *bytes payloads
  15 DeviceAssignmentProto device_assignment
  17 StackFrameIndexProto stack_frame_index
  19 FrontendAttributes frontend_attributes
  21 string device_type
LogicalBufferProto
  1 int64 id
  2 int64 size
  3 LogicalBufferProto.Location defined_at
  4 int64 color
LogicalBufferProto.Location
  2 string instruction_name
  4 int64 instruction_id
  3 *int64 shape_index
BufferAllocationProto
  1 int64 index
  2 int64 size
  3 bool is_thread_local
  11 bool is_tuple
  5 bool is_entry_computation_parameter
  12 bool is_constant
  6 int64 parameter_number
  7 bool maybe_live_out
  8 int64 color
  9 *BufferAllocationProto.Assigned assigned
BufferAllocationProto.Assigned
  1 int64 logical_buffer_id
  2 int64 offset
  3 int64 size
HeapSimulatorTrace
  1 *HeapSimulatorTrace.Event events
  2 bool whole_module_simulation
  3 int64 buffer_allocation_index
HeapSimulatorTrace.Event
  1 enum kind
  2 int64 buffer_id
  3 string computation_name
  4 string instruction_name
  5 int64 share_with_canonical_id
BufferAssignmentProto
  1 *LogicalBufferProto logical_buffers
  3 *BufferAllocationProto buffer_allocations
  4 *HeapSimulatorTrace heap_simulator_traces
HloProto
  1 HloModuleProto hlo_module
  3 BufferAssignmentProto buffer_assignment
"""
