"""The memories of all traces as one bounded section; a failure in it does not affect the others.

A memory belongs to a device, to the host, or to a compiled program. Similar memories of a job's ranks form one entry:
the one with the highest peak in full, and a row for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.memory import Memory, RunCurve, memory_over_run, trace_memories
from perfscope.analyzers.sections import guarded
from perfscope.model.memory import MemoryPhase
from perfscope.model.trace import Trace

MOST_MEMORIES = 12
"""Most memories of a section: a job has its devices (one entry), the host and a few relevant programs."""

MOST_PICTURES = 4
"""Most memories that are drawn, largest first; a picture has 400 numbers per category."""

MOST_RANKS = 32
"""Most ranks (or devices) besides the worst one, highest peaks first: four nodes of eight."""


class RankMemory(Struct, frozen=True, kw_only=True):
    """A rank's memory as a row of the comparison."""

    rank: int | None
    source: int
    """Index of its trace in the sources."""
    label: str
    peak_bytes: int
    reserved_bytes: int | None
    headroom_bytes: int | None
    phase: MemoryPhase
    step: int | None
    out_of_memory: int


class MemoryEntry(Struct, frozen=True, kw_only=True):
    """A memory, or similar memories of several ranks or devices: the one with the highest peak in full."""

    worst: Memory
    source: int
    """Index of the trace of ``worst`` in the sources."""
    others: tuple[RankMemory, ...] = ()
    """All of them including ``worst``, highest peak first; empty for a single one."""
    others_left: int = 0


class MemorySection(Struct, frozen=True, kw_only=True):
    """Memories, highest peak first; bounded, the rest is counted."""

    entries: tuple[MemoryEntry, ...] = ()
    """Highest peak first; at most 12. The first four have a picture."""
    entries_left: int = 0
    """Memories that are left out."""
    over_run: tuple[RunCurve, ...] = ()
    """Readings over all steps of a run, of the rank whose memory is largest."""
    problems: tuple[str, ...] = ()
    """Why a trace's memories are missing."""


NO_MEMORY = MemorySection()


def memory_section(traces: Sequence[Trace]) -> MemorySection:
    """The section of all traces; a trace whose memories cause an error is named in ``problems``."""
    result: dict[tuple[str, str, bool], list[tuple[int, Memory]]] = {}
    problems: list[str] = []
    left = 0
    curves: list[tuple[RunCurve, ...]] = []
    for source, trace in enumerate(traces):
        with guarded("the memory could not be summed up", trace.source.path, problems):
            mine = trace.fact(trace_memories)
            left += mine.left
            curves.append(trace.fact(memory_over_run))
            for memory in mine.memories:
                program = memory.label if memory.space == "program" else ""
                result.setdefault((memory.space, program, memory.of_driver), []).append((source, memory))
    entries = sorted(map(_entry, result.values()), key=lambda entry: -entry.worst.peak_bytes)
    drawn = [
        entry if index < MOST_PICTURES else replace(entry, worst=replace(entry.worst, picture=None))
        for index, entry in enumerate(entries[:MOST_MEMORIES])
    ]
    return MemorySection(
        entries=tuple(drawn),
        entries_left=left + max(0, len(entries) - MOST_MEMORIES),
        over_run=max(curves, key=lambda some: max((max(curve.bytes) for curve in some), default=0), default=()),
        problems=tuple(dict.fromkeys(problems)),
    )


def _entry(found: list[tuple[int, Memory]]) -> MemoryEntry:
    ordered = sorted(found, key=lambda one: (-one[1].peak_bytes, -one[1].taken_bytes))
    source, worst = ordered[0]
    rows = [
        RankMemory(
            rank=memory.rank,
            source=index,
            label=memory.label,
            peak_bytes=memory.peak_bytes,
            reserved_bytes=None if memory.reserved is None else memory.reserved.peak_bytes,
            headroom_bytes=memory.headroom_bytes,
            phase=memory.phase,
            step=memory.step,
            out_of_memory=memory.out_of_memory,
        )
        for index, memory in (ordered if len(ordered) > 1 else [])
    ]
    return MemoryEntry(
        worst=worst, source=source, others=tuple(rows[:MOST_RANKS]), others_left=max(0, len(rows) - MOST_RANKS)
    )
