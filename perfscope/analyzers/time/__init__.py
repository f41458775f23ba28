"""Time of a recording: device time, idle gaps and their causes, steps, calls, call sites."""

from __future__ import annotations

from perfscope.analyzers.time.account import (
    StepAccount,
    cause_intervals,
    idle_pieces,
    least_computing,
    step_accounts,
    time_within,
    warm_accounts,
    warm_windows,
)
from perfscope.analyzers.time.calls import blocking_calls, device_waits, framework
from perfscope.analyzers.time.device_data.device_doubts import DeviceDoubt
from perfscope.analyzers.time.device_time import DeviceParts, DeviceTime, device_busy, device_times
from perfscope.analyzers.time.exposure import communication_in_steps, exposed_communication, exposed_until
from perfscope.analyzers.time.fixes import UNCHECKED, Situation, does, situation
from perfscope.analyzers.time.host_account import HostAccount, marks_of
from perfscope.analyzers.time.host_activity import compiles, divide, innermost_spans, loads_code, main_thread
from perfscope.analyzers.time.host_lines import kind_of_slice
from perfscope.analyzers.time.idle_calls import SYNC_SLACK_NS
from perfscope.analyzers.time.jax_debugging import is_interpreted, jax_debugging
from perfscope.analyzers.time.model_calls import (
    BACKWARD,
    Generation,
    ModelCall,
    one_generation,
)
from perfscope.analyzers.time.phases import PHASES, work_phases
from perfscope.analyzers.time.rank_waits import reduced_too_often
from perfscope.analyzers.time.samples import nearest_samples, thread_lines
from perfscope.analyzers.time.sites import (
    MOST_SITES,
    UNKNOWN_SITE,
    CallSite,
    call_site,
    detail_row,
    forward_rows,
    graph_op,
    graph_ops_inside,
    launch_sites,
    steps_at,
)
from perfscope.analyzers.time.steps import (
    Windows,
    account_windows,
    device_doubts,
    late_span_ns,
    per_step,
    planned_cost,
    step_windows,
    steps_known,
    steps_work,
    timed_cost,
    whole_ns,
)
from perfscope.analyzers.time.untraced import adjusted, trace_step_time
from perfscope.analyzers.time.whole_run.cores import (
    CoreSummary,
    CoreWaits,
    core_summary,
    core_waits,
    time_with_core,
)
from perfscope.analyzers.time.whole_run.step_growth import GrownName, StepGrowth, grown_names, step_growth

__all__ = [
    "BACKWARD",
    "MOST_SITES",
    "PHASES",
    "SYNC_SLACK_NS",
    "UNCHECKED",
    "UNKNOWN_SITE",
    "CallSite",
    "CoreSummary",
    "CoreWaits",
    "DeviceDoubt",
    "DeviceParts",
    "DeviceTime",
    "Generation",
    "GrownName",
    "HostAccount",
    "ModelCall",
    "Situation",
    "StepAccount",
    "StepGrowth",
    "Windows",
    "account_windows",
    "adjusted",
    "blocking_calls",
    "call_site",
    "cause_intervals",
    "communication_in_steps",
    "compiles",
    "core_summary",
    "core_waits",
    "detail_row",
    "device_busy",
    "device_doubts",
    "device_times",
    "device_waits",
    "divide",
    "does",
    "exposed_communication",
    "exposed_until",
    "forward_rows",
    "framework",
    "graph_op",
    "graph_ops_inside",
    "grown_names",
    "idle_pieces",
    "innermost_spans",
    "is_interpreted",
    "jax_debugging",
    "kind_of_slice",
    "late_span_ns",
    "launch_sites",
    "least_computing",
    "loads_code",
    "main_thread",
    "marks_of",
    "nearest_samples",
    "one_generation",
    "per_step",
    "planned_cost",
    "reduced_too_often",
    "situation",
    "step_accounts",
    "step_growth",
    "step_windows",
    "steps_at",
    "steps_known",
    "steps_work",
    "thread_lines",
    "time_with_core",
    "time_within",
    "timed_cost",
    "trace_step_time",
    "warm_accounts",
    "warm_windows",
    "whole_ns",
    "work_phases",
]
