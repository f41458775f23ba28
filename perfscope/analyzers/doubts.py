"""Limits of findings: rules affected by implausible device data, and advice on models that were converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perfscope.analyzers.time import device_doubts

if TYPE_CHECKING:
    from perfscope.analyzers.time import DeviceDoubt
    from perfscope.model.finding import Finding, Rule
    from perfscope.model.trace import Trace

OF_IDLE_TIME = frozenset({
    "exposed_communication", "exposed_copy", "host_bound", "host_sync", "input_stall", "launch_bound", "pageable_copy",
    "pipeline_bubble", "small_collectives", "small_kernels", "straggler", "unexplained_idle", "warmup_compile",
})  # fmt: skip
"""Rules that depend on when a device worked and when it waited."""

OF_WORK_TIME = frozenset({
    "expert_imbalance", "full_precision_matmul", "link_contention", "nvlink_stall", "unfused_attention", "unfused_ops",
    "unfused_optimizer",
})  # fmt: skip
"""Rules that depend on the duration of kernels."""

CONVERTED = "In the PyTorch program that the ONNX model was exported from (ONNX Runtime fuses on its own):"


def doubt_of(rule: Rule, trace: Trace) -> DeviceDoubt | None:
    """Why the rule cannot believe the device data of the trace; ``None`` where it can, or needs none."""
    of_work = rule.id in OF_WORK_TIME or rule.device_times == "work"
    if not (of_work or rule.id in OF_IDLE_TIME or rule.device_times or "device_work" in rule.needs):
        return None
    doubts = trace.fact(device_doubts)
    return next((doubt for doubt in doubts if doubt.work or not of_work), None)


def doubts_of(traces: Sequence[Trace]) -> tuple[DeviceDoubt, ...]:
    """Return each kind of doubt once, in the words of its first trace, with the number of affected traces."""
    kinds: dict[str, list[DeviceDoubt]] = {}
    for trace in traces:
        for doubt in trace.fact(device_doubts):
            kinds.setdefault(doubt.kind, []).append(doubt)
    return tuple(
        found[0]
        if len(found) == len(traces)
        else replace(found[0], text=f"{found[0].text} ({len(found)} of {len(traces)} sources)")
        for found in kinds.values()
    )


def for_original(trace: Trace, finding: Finding) -> Finding:
    """Return a finding with its advice addressed to the program that a converted model was exported from."""
    if not finding.advice or not any(loaded.plan.converted_from for loaded in trace.torch_plans):
        return finding
    return replace(finding, advice=f"{CONVERTED} {finding.advice}")
