"""Ops and kernels of a program: time, traffic, fusion, and their places in a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.ops.achieved import (
    NOTHING,
    Achieved,
    Costs,
    Utilization,
    call_roof,
    copy_costs,
    costed_calls,
    device_peaks,
    kernel_costs,
    longest_ns,
)
from perfscope.analyzers.ops.anomaly import DISTORTED, distortion
from perfscope.analyzers.ops.finding_spans import (
    spans_at,
    spans_of_blocks,
    spans_of_instructions,
    spans_of_ops,
    spans_of_parts,
    spans_of_peak,
    spans_of_regions,
    spans_of_slices,
    spans_of_windows,
    spans_within,
)
from perfscope.analyzers.ops.graph_time import graph_time, ops_time
from perfscope.analyzers.ops.hardware_counters import (
    PRECISIONS,
    CountedCall,
    CountedOp,
    CountedWork,
    counted_calls,
    counted_work,
)
from perfscope.analyzers.ops.host_costs import host_costs
from perfscope.analyzers.ops.kernel_names import short_kernel_name
from perfscope.analyzers.ops.kernels import (
    ITEM_SIZES,
    canonical_dtype,
    input_tensors,
    matmul_precision,
    uses_tensor_cores,
)
from perfscope.analyzers.ops.movement import Movement, movements, times_of_ops
from perfscope.analyzers.ops.op_call import OpCost
from perfscope.analyzers.ops.op_class import op_class
from perfscope.analyzers.ops.op_times import OpTimes, op_bytes, op_times
from perfscope.analyzers.ops.op_work import OpWork, op_category, op_work, op_works
from perfscope.analyzers.ops.top_work import NOT_KNOWN, TopWork, WorkRow, merge_top_work, module_label, top_work
from perfscope.model.hooks import names_from

__all__ = [
    "DISTORTED",
    "ITEM_SIZES",
    "NOTHING",
    "NOT_KNOWN",
    "PRECISIONS",
    "Achieved",
    "Costs",
    "CountedCall",
    "CountedOp",
    "CountedWork",
    "Movement",
    "OpCost",
    "OpTimes",
    "OpWork",
    "TopWork",
    "Utilization",
    "WorkRow",
    "call_roof",
    "canonical_dtype",
    "copy_costs",
    "costed_calls",
    "counted_calls",
    "counted_work",
    "device_peaks",
    "distortion",
    "graph_time",
    "host_costs",
    "input_tensors",
    "kernel_costs",
    "longest_ns",
    "matmul_precision",
    "merge_top_work",
    "module_label",
    "movements",
    "op_bytes",
    "op_category",
    "op_class",
    "op_times",
    "op_work",
    "op_works",
    "ops_time",
    "short_kernel_name",
    "spans_at",
    "spans_of_blocks",
    "spans_of_instructions",
    "spans_of_ops",
    "spans_of_parts",
    "spans_of_peak",
    "spans_of_regions",
    "spans_of_slices",
    "spans_of_windows",
    "spans_within",
    "times_of_ops",
    "top_work",
    "uses_tensor_cores",
]

if TYPE_CHECKING:
    from perfscope.analyzers.ops.attention import trace_attentions as trace_attentions
    from perfscope.analyzers.ops.fusion import NOTHING_LOST as NOTHING_LOST
    from perfscope.analyzers.ops.fusion import FusionGroup as FusionGroup
    from perfscope.analyzers.ops.fusion import flow_bytes as flow_bytes
    from perfscope.analyzers.ops.fusion import fusion_groups as fusion_groups
    from perfscope.analyzers.ops.fusion import fusion_reason as fusion_reason
    from perfscope.analyzers.ops.fusion import is_elementwise as is_elementwise
    from perfscope.analyzers.ops.fusion import region_bytes as region_bytes
    from perfscope.analyzers.ops.recompute import EVALUATE as EVALUATE
    from perfscope.analyzers.ops.recompute import OPTIMIZER_STEP as OPTIMIZER_STEP
    from perfscope.analyzers.ops.recompute import RecomputeRegion as RecomputeRegion
    from perfscope.analyzers.ops.recompute import autograd_nodes as autograd_nodes
    from perfscope.analyzers.ops.recompute import recompute_regions as recompute_regions
    from perfscope.analyzers.ops.recompute import recomputed_ops as recomputed_ops
    from perfscope.analyzers.ops.tables.work_by_name import RESULT as RESULT
    from perfscope.analyzers.ops.work_by_name import NamedWork as NamedWork
    from perfscope.analyzers.ops.work_by_name import achieved_by as achieved_by
    from perfscope.analyzers.ops.work_by_name import device_work_by_name as device_work_by_name
    from perfscope.analyzers.ops.work_by_name import host_op_costs as host_op_costs
    from perfscope.analyzers.ops.work_by_name import ops_by_name as ops_by_name
    from perfscope.analyzers.ops.work_by_name import rows_by_code as rows_by_code
else:
    __getattr__ = names_from(
        __name__,
        {
            "attention": "trace_attentions",
            "fusion": "FusionGroup NOTHING_LOST flow_bytes fusion_groups fusion_reason is_elementwise region_bytes",
            "recompute": "EVALUATE OPTIMIZER_STEP RecomputeRegion autograd_nodes recompute_regions recomputed_ops",
            "tables.work_by_name": "RESULT",
            "work_by_name": "NamedWork achieved_by device_work_by_name host_op_costs ops_by_name rows_by_code",
        },
    )
