"""All memories of a trace over time: what allocators did, and what compiled programs need."""

from __future__ import annotations

from perfscope.analyzers.memory.blocks import event_timelines
from perfscope.analyzers.memory.categories import categorized
from perfscope.analyzers.programs.blocks import program_timelines
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import Trace


def memory_timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    """Devices by number, the host, compiled programs; no timeline for what nobody recorded."""
    told = tuple(categorized(trace, timeline) for timeline in trace.fact(event_timelines))
    return (*told, *trace.fact(program_timelines))
