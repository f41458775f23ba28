"""Compiled XLA programs: module, computations, instructions, shapes, and what each instruction costs."""

from typing import TYPE_CHECKING

from perfscope.model.hooks import names_from

if TYPE_CHECKING:
    from perfscope.analyzers.hlo.buffers import Arena as Arena
    from perfscope.analyzers.hlo.buffers import AssignedMemory as AssignedMemory
    from perfscope.analyzers.hlo.buffers import LiveValue as LiveValue
    from perfscope.analyzers.hlo.buffers import arena_blocks as arena_blocks
    from perfscope.analyzers.hlo.buffers import arena_of as arena_of
    from perfscope.analyzers.hlo.buffers import assigned_memory as assigned_memory
    from perfscope.analyzers.hlo.buffers import in_device_memory as in_device_memory
    from perfscope.analyzers.hlo.buffers import live_peak_bytes as live_peak_bytes
    from perfscope.analyzers.hlo.buffers import live_values as live_values
    from perfscope.analyzers.hlo.buffers import peak_bytes as peak_bytes
    from perfscope.analyzers.hlo.collective import KINDS as KINDS
    from perfscope.analyzers.hlo.collective import MOST_SEARCHED as MOST_SEARCHED
    from perfscope.analyzers.hlo.collective import Collective as Collective
    from perfscope.analyzers.hlo.collective import by_size as by_size
    from perfscope.analyzers.hlo.collective import collectives as collectives
    from perfscope.analyzers.hlo.collective import collectives_of as collectives_of
    from perfscope.analyzers.hlo.collective import independent_work as independent_work
    from perfscope.analyzers.hlo.collective import is_marked as is_marked
    from perfscope.analyzers.hlo.cost.collectives import COLLECTIVES as COLLECTIVES
    from perfscope.analyzers.hlo.cost.collectives import group_size as group_size
    from perfscope.analyzers.hlo.cost.collectives import sent_bytes as sent_bytes
    from perfscope.analyzers.hlo.cost.module import CONTAINERS as CONTAINERS
    from perfscope.analyzers.hlo.cost.module import FREE as FREE
    from perfscope.analyzers.hlo.cost.module import InstructionCost as InstructionCost
    from perfscope.analyzers.hlo.cost.module import ModuleCost as ModuleCost
    from perfscope.analyzers.hlo.cost.module import hlo_costs as hlo_costs
    from perfscope.analyzers.hlo.cost.module import module_cost as module_cost
    from perfscope.analyzers.hlo.cost.ops import result_of as result_of
    from perfscope.analyzers.hlo.cost.products import PRODUCTS as PRODUCTS
    from perfscope.analyzers.hlo.cost.products import WindowDim as WindowDim
    from perfscope.analyzers.hlo.cost.products import dims_of as dims_of
    from perfscope.analyzers.hlo.cost.products import window_dims as window_dims
    from perfscope.analyzers.hlo.cost.types import Cost as Cost
    from perfscope.analyzers.hlo.cost.types import Phase as Phase
    from perfscope.analyzers.hlo.cost.types import Product as Product
    from perfscope.analyzers.hlo.cost.types import phase_of as phase_of
    from perfscope.analyzers.hlo.device import ASSUMED as ASSUMED
    from perfscope.analyzers.hlo.device import ProgramDevice as ProgramDevice
    from perfscope.analyzers.hlo.device import device_memory_bytes as device_memory_bytes
    from perfscope.analyzers.hlo.device import device_names as device_names
    from perfscope.analyzers.hlo.device import judged_for as judged_for
    from perfscope.analyzers.hlo.device import program_device as program_device
    from perfscope.analyzers.hlo.device import program_platform as program_platform
    from perfscope.analyzers.hlo.device import recorded_device as recorded_device
    from perfscope.analyzers.hlo.execution import executions as executions
    from perfscope.analyzers.hlo.execution import executions_of as executions_of
    from perfscope.analyzers.hlo.execution import measured_run_ns as measured_run_ns
    from perfscope.analyzers.hlo.execution import module_index as module_index
    from perfscope.analyzers.hlo.execution import rows_of as rows_of
    from perfscope.analyzers.hlo.module import ITEM_BITS as ITEM_BITS
    from perfscope.analyzers.hlo.module import MAX_GROUP_IDS as MAX_GROUP_IDS
    from perfscope.analyzers.hlo.module import MAX_PROTO_BYTES as MAX_PROTO_BYTES
    from perfscope.analyzers.hlo.module import MAX_TEXT_BYTES as MAX_TEXT_BYTES
    from perfscope.analyzers.hlo.module import BufferAllocation as BufferAllocation
    from perfscope.analyzers.hlo.module import BufferAssignment as BufferAssignment
    from perfscope.analyzers.hlo.module import Computation as Computation
    from perfscope.analyzers.hlo.module import HloModule as HloModule
    from perfscope.analyzers.hlo.module import Instruction as Instruction
    from perfscope.analyzers.hlo.module import Platform as Platform
    from perfscope.analyzers.hlo.module import Shape as Shape
    from perfscope.analyzers.hlo.parse.fusion_dump import refusal_of as refusal_of
    from perfscope.analyzers.hlo.parse.fusion_dump import refusals as refusals
    from perfscope.analyzers.hlo.parse.proto import module_of_proto as module_of_proto
    from perfscope.analyzers.hlo.parse.text import module_of as module_of
    from perfscope.analyzers.hlo.parse.thunks import Schedule as Schedule
    from perfscope.analyzers.hlo.parse.thunks import Thunks as Thunks
    from perfscope.analyzers.hlo.parse.thunks import read_thunks as read_thunks
    from perfscope.analyzers.hlo.products import casts as casts
    from perfscope.analyzers.hlo.products import convolution_axes as convolution_axes
    from perfscope.analyzers.hlo.products import dot_axes as dot_axes
    from perfscope.analyzers.hlo.products import kernels_of as kernels_of
    from perfscope.analyzers.hlo.program import CONTROL as CONTROL
    from perfscope.analyzers.hlo.program import Runs as Runs
    from perfscope.analyzers.hlo.program import call_line as call_line
    from perfscope.analyzers.hlo.program import control_runs as control_runs
    from perfscope.analyzers.hlo.program import costs as costs
    from perfscope.analyzers.hlo.program import fused as fused
    from perfscope.analyzers.hlo.program import launched as launched
    from perfscope.analyzers.hlo.program import line_of as line_of
    from perfscope.analyzers.hlo.program import primitive as primitive
    from perfscope.analyzers.hlo.program import program_label as program_label
    from perfscope.analyzers.hlo.program import program_labels as program_labels
    from perfscope.analyzers.hlo.program import programs_apart as programs_apart
    from perfscope.analyzers.hlo.program import where_of as where_of
    from perfscope.analyzers.hlo.proto_wire import looks_like_module as looks_like_module
    from perfscope.analyzers.hlo.proto_wire import looks_like_proto as looks_like_proto
    from perfscope.analyzers.hlo.protos import decode as decode
    from perfscope.analyzers.hlo.roofline import InstructionRoof as InstructionRoof
    from perfscope.analyzers.hlo.roofline import Utilization as Utilization
    from perfscope.analyzers.hlo.roofline import agreed_executions as agreed_executions
    from perfscope.analyzers.hlo.roofline import compute_ns as compute_ns
    from perfscope.analyzers.hlo.roofline import measured_roofline as measured_roofline
    from perfscope.analyzers.hlo.roofline import products_ns as products_ns
    from perfscope.analyzers.hlo.roofline import program_roofs as program_roofs
    from perfscope.analyzers.hlo.roofline import roof_of as roof_of
    from perfscope.analyzers.hlo.roofline import roof_sum_ns as roof_sum_ns
    from perfscope.analyzers.hlo.roofline import run_times as run_times
    from perfscope.analyzers.hlo.roofline import utilization as utilization
    from perfscope.analyzers.hlo.scope import Scope as Scope
    from perfscope.analyzers.hlo.scope import is_library as is_library
    from perfscope.analyzers.hlo.scope import scope_of as scope_of
    from perfscope.analyzers.hlo.scope import served as served
    from perfscope.analyzers.hlo.scope import users_of as users_of
    from perfscope.analyzers.hlo.structure import callees_first as callees_first
    from perfscope.analyzers.hlo.time import InstructionTime as InstructionTime
    from perfscope.analyzers.hlo.time import hlo_time as hlo_time
    from perfscope.analyzers.hlo.views import MOVES_NOTHING as MOVES_NOTHING
    from perfscope.analyzers.hlo.views import REPEATED as REPEATED
    from perfscope.analyzers.hlo.views import SAME_BUFFER as SAME_BUFFER
    from perfscope.analyzers.hlo.views import SAME_ELEMENTS as SAME_ELEMENTS
    from perfscope.analyzers.hlo.views import SAME_ORDER as SAME_ORDER
    from perfscope.analyzers.hlo.views import UPDATES as UPDATES
    from perfscope.analyzers.hlo.views import Fusions as Fusions
    from perfscope.analyzers.hlo.views import Parts as Parts
    from perfscope.analyzers.hlo.views import Source as Source
    from perfscope.analyzers.hlo.views import fusions_of as fusions_of
    from perfscope.analyzers.hlo.views import is_collected as is_collected
    from perfscope.analyzers.hlo.views import is_handed_on as is_handed_on
    from perfscope.analyzers.hlo.views import made_by as made_by
    from perfscope.analyzers.hlo.views import path as path
    from perfscope.analyzers.hlo.views import path_across as path_across
    from perfscope.analyzers.hlo.views import sources as sources
    from perfscope.analyzers.hlo.views import tuple_index as tuple_index
    from perfscope.analyzers.hlo.views import updated_operand as updated_operand
else:
    __getattr__ = names_from(
        __name__,
        {
            "buffers": (
                "Arena AssignedMemory LiveValue arena_blocks arena_of assigned_memory in_device_memory "
                "live_peak_bytes live_values peak_bytes"
            ),
            "collective": (
                "Collective KINDS MOST_SEARCHED by_size collectives collectives_of independent_work is_marked"
            ),
            "cost.collectives": "COLLECTIVES group_size sent_bytes",
            "cost.module": "CONTAINERS FREE InstructionCost ModuleCost hlo_costs module_cost",
            "cost.ops": "result_of",
            "cost.products": "PRODUCTS WindowDim dims_of window_dims",
            "cost.types": "Cost Phase Product phase_of",
            "device": (
                "ASSUMED ProgramDevice device_memory_bytes device_names judged_for program_device program_platform "
                "recorded_device"
            ),
            "execution": "executions executions_of measured_run_ns module_index rows_of",
            "module": (
                "BufferAllocation BufferAssignment Computation HloModule ITEM_BITS Instruction MAX_GROUP_IDS "
                "MAX_PROTO_BYTES MAX_TEXT_BYTES Platform Shape"
            ),
            "parse.fusion_dump": "refusal_of refusals",
            "parse.proto": "module_of_proto",
            "parse.text": "module_of",
            "parse.thunks": "Schedule Thunks read_thunks",
            "products": "casts convolution_axes dot_axes kernels_of",
            "program": (
                "CONTROL Runs call_line control_runs costs fused launched line_of primitive program_label "
                "program_labels programs_apart where_of"
            ),
            "proto_wire": "looks_like_module looks_like_proto",
            "protos": "decode",
            "roofline": (
                "InstructionRoof Utilization agreed_executions compute_ns measured_roofline products_ns "
                "program_roofs roof_of roof_sum_ns run_times utilization"
            ),
            "scope": "Scope is_library scope_of served users_of",
            "structure": "callees_first",
            "time": "InstructionTime hlo_time",
            "views": (
                "Fusions MOVES_NOTHING Parts REPEATED SAME_BUFFER SAME_ELEMENTS SAME_ORDER Source UPDATES "
                "fusions_of is_collected is_handed_on made_by path path_across sources tuple_index updated_operand"
            ),
        },
    )
