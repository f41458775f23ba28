"""Ops and kernels of a program: time, traffic, fusion, and their places in a recording."""

from __future__ import annotations

from perfscope.analyzers.ops.achieved import (
    NOTHING,
    Achieved,
    Utilization,
    call_roof,
    costed_calls,
    device_peaks,
    host_costs,
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
from perfscope.analyzers.ops.graph_time import graph_time
from perfscope.analyzers.ops.hardware_counters import (
    PRECISIONS,
    CountedCall,
    CountedOp,
    CountedWork,
    counted_calls,
    counted_work,
)
from perfscope.analyzers.ops.kernel_names import short_kernel_name
from perfscope.analyzers.ops.kernels import canonical_dtype, matmul_precision, uses_tensor_cores
from perfscope.analyzers.ops.movement import Movement, movements, times_of_ops
from perfscope.analyzers.ops.op_call import OpCost
from perfscope.analyzers.ops.op_class import op_class
from perfscope.analyzers.ops.op_times import OpTimes, op_bytes, op_times
from perfscope.analyzers.ops.op_work import OpWork, op_category, op_work, op_works
from perfscope.analyzers.ops.top_work import NOT_KNOWN, TopWork, WorkRow, merge_top_work, module_label, top_work

__all__ = [
    "DISTORTED",
    "NOTHING",
    "NOT_KNOWN",
    "PRECISIONS",
    "Achieved",
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
    "costed_calls",
    "counted_calls",
    "counted_work",
    "device_peaks",
    "distortion",
    "graph_time",
    "host_costs",
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
