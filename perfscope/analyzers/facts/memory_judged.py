"""Which memories rules on memory judge, how severe a finding there is, and what they say where nothing was recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.model.finding import HIGH_SHARE, AbstainError, Finding, Severity, Where
from perfscope.model.memory import MemoryTimeline, SourceLine
from perfscope.model.trace import RECORDED, Trace

NO_MEMORY = f"not recorded: {RECORDED['memory']}"
"""Why rules on memory cannot look. The detail pass of a run may have what the timing pass lacks, so no rule ``NEEDS``
it of the trace itself."""

HOST_ONLY = "the program computes in the host's memory: what the machine has left is not judged"
"""Why rules on the headroom of a device cannot look at a program without one."""

OF_XLA = "allocator events of XLA"
"""How `MemoryTimeline.known_from` begins where XLA's allocator was watched."""

SCARCE_SHARE = 0.9
"""Of the device, at the peak of what its allocator holds: what lies outside of the allocator (the CUDA context,
communicators, other processes) takes some of the rest, and a longer batch the remainder. It is also what vLLM takes by
default, as the most that is safe (``gpu_memory_utilization``)."""


def judged_timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    """Memories of devices as their allocators saw them; the host's only where the program computes there.

    `AbstainError` where there is none. What compiled programs need is modelled, and judged by rules of its own.
    """
    known = [one for one in trace.fact(memory_timelines) if not one.of_driver]
    devices = tuple(one for one in known if one.space == "device")
    if devices:
        return devices
    hosts = tuple(one for one in known if one.space == "host") if not len(trace.rows["kernels"]) else ()
    if not hosts:
        raise AbstainError(NO_MEMORY)
    return hosts


def worst_of_devices(findings: Iterable[Finding]) -> list[Finding]:
    """Of the devices of one process that have the same finding, that of the one where most is to be saved."""
    alike: dict[tuple[str, Where], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.subject, finding.where), []).append(finding)
    worst = []
    for members in alike.values():
        chosen = max(members, key=lambda one: one.cost_bytes or 0)
        others = len(members) - 1
        if others:
            also = f"; {others} more device{'' if others == 1 else 's'} the like"
            chosen = replace(chosen, title=chosen.title + also)
        worst.append(chosen)
    return worst


def is_scarce(timeline: MemoryTimeline) -> bool:
    """Whether the device is nearly full at the peak, or an allocation failed."""
    if timeline.out_of_memory:
        return True
    capacity = timeline.capacity_bytes
    return capacity is not None and peak_held(timeline) >= SCARCE_SHARE * capacity


def peak_held(timeline: MemoryTimeline) -> int:
    """Most bytes that the allocator took from the device: reserved where that is known, else in use."""
    live = int(timeline.live().bytes.max(initial=0))
    return live if timeline.reserved is None else max(live, int(timeline.reserved.bytes.max(initial=0)))


def severity_of_bytes(saved: int, whole: int, timeline: MemoryTimeline) -> Severity:
    """High where memory is scarce and the saving is felt; never high where nobody knows how full the device is."""
    felt = saved >= HIGH_SHARE * whole
    if felt and is_scarce(timeline):
        return "high"
    return "medium" if felt else "low"


def said_line(line: SourceLine | None) -> str | None:
    """``memory_defects.py:18``, with its folder: short enough for a title. `Where` has the file as recorded."""
    if line is None:
        return None
    file = "/".join(line.file.replace("\\", "/").split("/")[-2:])
    return file if line.line is None else f"{file}:{line.line}"
