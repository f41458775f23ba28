"""Saving of a change to some graph ops relative to the step: by time if known, else by bytes."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from perfscope.analyzers.graph import trace_flow
from perfscope.analyzers.ops import flow_bytes, graph_time, longest_ns, ops_time
from perfscope.analyzers.plans.time import bytes_ns, plan_works, shortest_ns
from perfscope.analyzers.spans import WorkTime
from perfscope.analyzers.time import step_windows, whole_ns
from perfscope.model.severity import Severity, severity_of
from perfscope.model.trace import MISSING, Trace

FIXED_COST_NS = 2_000
"""Upper limit of the fixed cost of an op: an empty kernel occupies a GPU, and an eager op a CPU, for one to two
microseconds. Below it, the shortest op of the trace counts."""


class Saving(Struct, frozen=True, kw_only=True):
    """The most that a change to some graph ops would save in one step."""

    bytes: int
    share_of_bytes: float
    """Share of all bytes that the step's ops read and write."""
    time: WorkTime | None
    """Time of the ops; None if they could not be matched to timed ops."""
    ns: int | None
    """Saved part of their exposed time; None if they could not be matched."""
    share: float
    """Share of the step's time, or of its bytes if no time is known."""
    severity: Severity
    """Derived from that share; without a time at most medium."""


def saving(trace: Trace, ops: Iterable[int], *, saved_bytes: int, saved_part: float, fewer: int = 0) -> Saving:
    """The saving if ``saved_bytes`` (a part ``saved_part``, 0 to 1, of the ops' traffic) and ``fewer`` ops disappear.

    time of an op = fixed cost + traffic: ``fewer`` fixed costs and the part ``saved_part`` of the rest disappear,
    limited to the time that those bytes and launches can have taken (``longest_ns``).
    """
    chosen = tuple(ops)
    whole_bytes = trace.fact(step_bytes)
    byte_share = saved_bytes / whole_bytes if whole_bytes else 0.0
    time = ops_time(trace, chosen)
    planned = trace.fact(planned_step_ns)
    if time is None and planned is not None and trace.target is not None:
        saved_ns = bytes_ns(trace.target, saved_bytes) + fewer * shortest_ns(trace.target)
        return Saving(
            bytes=saved_bytes,
            share_of_bytes=byte_share,
            time=None,
            ns=saved_ns,
            share=saved_ns / planned if planned else 0.0,
            severity=severity_of(saved_ns, planned),
        )
    if time is None:
        return Saving(
            bytes=saved_bytes,
            share_of_bytes=byte_share,
            time=None,
            ns=None,
            share=byte_share,
            severity="low" if severity_of(saved_bytes, whole_bytes) == "low" else "medium",
        )
    fixed = min(trace.fact(fixed_cost_ns), time.exposed_ns / len(chosen)) if chosen else 0
    part_ns = round(fewer * fixed + (time.exposed_ns - len(chosen) * fixed) * saved_part)
    saved_ns = min(part_ns, longest_ns(trace, moved=saved_bytes, launches=fewer))
    step = step_ns(trace)
    return Saving(
        bytes=saved_bytes,
        share_of_bytes=byte_share,
        time=time,
        ns=saved_ns,
        share=saved_ns / step if step else 0.0,
        severity=severity_of(saved_ns, step),
    )


def planned_step_ns(trace: Trace) -> int | None:
    """For a plan of an absent device: the modelled low end of the step with the ops; ``None`` without a plan."""
    works = trace.fact(plan_works)
    if not works:
        return None
    compiled = works[0].held.plan.compiled_by == "program"
    work = (works[0].compiled or works[0].inside) if compiled else works[0].eager
    return None if work is None else work.device.low


def step_ns(trace: Trace) -> float:
    """Time of a step, measured, or modelled for a plan; 0 if unknown."""
    planned = trace.fact(planned_step_ns)
    return float(planned) if planned is not None else whole_ns(trace) / steps_in(trace)


def fixed_cost_ns(trace: Trace) -> int:
    """Fixed cost of an op: the shortest kernel (or op of the graph) of the trace, limited to `FIXED_COST_NS`."""
    kernels, slices = trace.rows["kernels"], trace.rows["slices"]
    if len(kernels):
        return min(FIXED_COST_NS, int((kernels["end_ns"] - kernels["start_ns"]).min()))
    placed = [spans[spans != MISSING] for spans in trace.fact(graph_time).spans]
    lengths = [slices["end_ns"][rows] - slices["start_ns"][rows] for rows in placed if len(rows)]
    return min(FIXED_COST_NS, *(int(found.min()) for found in lengths)) if lengths else 0


def step_bytes(trace: Trace) -> int:
    """Bytes read and written by all ops of the graph, added up; 0 without a graph."""
    graph, flow = trace.op_graph, trace.fact(trace_flow)
    if graph is None or flow is None:
        return 0
    return sum(flow_bytes(graph, flow, index) for index, op in enumerate(graph.ops) if not op.view)


def steps_in(trace: Trace) -> int:
    """Steps of the trace; 1 without steps, because the graph was then matched to the whole trace."""
    return trace.fact(step_windows).count or 1


def how_joined(trace: Trace) -> str:
    """Reliability of the times of graph ops, in words, for a finding."""
    if trace.fact(planned_step_ns) is not None and trace.target is not None:
        return f"planned, modelled for {trace.target.device.name}"
    place = trace.fact(graph_time)
    cut = "; the graph is cut at its op limit" if trace.op_graph is not None and trace.op_graph.truncated else ""
    if place.known:
        what = "kernel time" if place.on_device else "op time (no accelerator)"
        return f"{what}, {100 * place.matched_share:.0f}% of the graph's ops found in the timed steps{cut}"
    return f"no time: {100 * place.matched_share:.0f}% of the graph's ops found in the timed steps{cut}"
