"""The memories of all traces as one bounded section of an analysis; what breaks in it breaks nothing else.

A memory is a device's, the host's, or what a compiled program needs. Those of the ranks of a job that are alike are one
entry: the one with the highest peak is told in full, and each has a row beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.memory import Memory, trace_memories
from perfscope.analyzers.sections import guarded
from perfscope.model.memory import MemoryPhase
from perfscope.model.trace import Trace

MOST_MEMORIES = 12
"""Memories of a section: a job has its devices (one entry), the host and a few programs that matter."""

MOST_PICTURES = 4
"""Memories that are drawn, the largest; a picture is 400 numbers for each category."""

MOST_RANKS = 32
"""Ranks (or devices) beside the worst one, those with the highest peaks: four nodes of eight."""


class RankMemory(Struct, frozen=True, kw_only=True):
    """A rank's memory as a row beside the others."""

    rank: int | None
    source: int
    """Number of its trace among the sources."""
    label: str
    peak_bytes: int
    reserved_bytes: int | None
    headroom_bytes: int | None
    phase: MemoryPhase
    step: int | None
    out_of_memory: int


class MemoryEntry(Struct, frozen=True, kw_only=True):
    """A memory, or those of several ranks or devices that are alike: the one with the highest peak in full."""

    worst: Memory
    source: int
    """Number of the trace of ``worst`` among the sources."""
    others: tuple[RankMemory, ...] = ()
    """All of them, ``worst`` among them, highest peak first; empty where it is alone."""
    others_left: int = 0


class MemorySection(Struct, frozen=True, kw_only=True):
    """Memories, highest peak first; bounded, what is left out is counted."""

    entries: tuple[MemoryEntry, ...] = ()
    entries_left: int = 0
    problems: tuple[str, ...] = ()
    """Why a trace's memories are not in here."""


NO_MEMORY = MemorySection()


def memory_section(traces: Sequence[Trace]) -> MemorySection:
    """The section of all traces; a trace whose memories break it is named in ``problems``."""
    result: dict[tuple[str, str, bool], list[tuple[int, Memory]]] = {}
    problems: list[str] = []
    left = 0
    for source, trace in enumerate(traces):
        with guarded("the memory could not be summed up", trace.source.path, problems):
            mine = trace.fact(trace_memories)
            left += mine.left
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
