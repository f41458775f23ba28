"""Where the time of a recording went: device time, gaps and their causes, steps, calls, call sites."""

from __future__ import annotations

from perfscope.analyzers.time.account import (
    CAUSES,
    Cause,
    StepAccount,
    account_windows,
    step_accounts,
    warm_accounts,
    warm_windows,
)
from perfscope.analyzers.time.calls import blocking_calls
from perfscope.analyzers.time.compiled_regions import (
    GRAPH_CALL,
    REGION,
    Region,
    Window,
    compiled_rows,
    regions,
    user_line,
)
from perfscope.analyzers.time.device_time import DeviceTime, device_busy, device_times
from perfscope.analyzers.time.exposure import communication_in_steps, exposed_communication, exposed_until
from perfscope.analyzers.time.gaps import GapCause, Gaps, gaps
from perfscope.analyzers.time.host_account import HOST_PARTS, HostAccount, HostPart, host_account
from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.model_calls import Generation, ModelCall, generation
from perfscope.analyzers.time.records import device_records, host_records, op_records, plan_records, program_records
from perfscope.analyzers.time.sites import UNKNOWN_SITE, CallSite, call_site, detail_row, graph_op
from perfscope.analyzers.time.spans import (
    NO_WORK,
    WorkTime,
    covering_slices,
    input_slices,
    lineage,
    named_slices,
    nearest_ancestor,
    op_times,
    slice_name,
    spans_of_ranks,
    subtree_ends,
    time_of,
    work_inside,
    work_time,
    worst_spans,
)
from perfscope.analyzers.time.steps import (
    HOST_AHEAD,
    cost_text,
    late_span_ns,
    per_step,
    step_windows,
    steps_work,
    timed_cost,
    whole_ns,
)
from perfscope.analyzers.time.untraced import bounded

__all__ = [
    "CAUSES",
    "GRAPH_CALL",
    "HOST_AHEAD",
    "HOST_PARTS",
    "NO_WORK",
    "REGION",
    "UNKNOWN_SITE",
    "CallSite",
    "Cause",
    "DeviceTime",
    "GapCause",
    "Gaps",
    "Generation",
    "HostAccount",
    "HostPart",
    "ModelCall",
    "Region",
    "StepAccount",
    "Window",
    "WorkTime",
    "account_windows",
    "blocking_calls",
    "bounded",
    "call_site",
    "communication_in_steps",
    "compiled_rows",
    "cost_text",
    "covering_slices",
    "detail_row",
    "device_busy",
    "device_records",
    "device_times",
    "exposed_communication",
    "exposed_until",
    "gaps",
    "generation",
    "graph_op",
    "host_account",
    "host_records",
    "input_slices",
    "late_span_ns",
    "lineage",
    "main_thread",
    "named_slices",
    "nearest_ancestor",
    "op_records",
    "op_times",
    "per_step",
    "plan_records",
    "program_records",
    "regions",
    "slice_name",
    "spans_of_ranks",
    "step_accounts",
    "step_windows",
    "steps_work",
    "subtree_ends",
    "time_of",
    "timed_cost",
    "user_line",
    "warm_accounts",
    "warm_windows",
    "whole_ns",
    "work_inside",
    "work_time",
    "worst_spans",
]
