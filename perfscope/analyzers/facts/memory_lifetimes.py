"""How long activations lie about between the forward and the backward pass that needs them.

An activation is in use until the call that made it returns (the innermost module's, else the op's), and again from
when the autograd node begins that lets it go. In between it only waits: its bytes times that time is what activation
checkpointing or offloading would save. Where no spans were recorded it waits from when it was made until it is freed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.memory_blocks import memory_of, memory_rows
from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.facts.nesting import nearest_ancestor
from perfscope.analyzers.facts.recompute import autograd_nodes
from perfscope.model.memory import Int64, MemoryPhase, MemoryTimeline, strictly_increasing
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.trace.tables import MemoryCategory


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleActivations:
    """Activations that one module made, over all steps."""

    module: str | None
    blocks: int
    bytes: int
    idle_byte_ns: int
    """Sum of bytes times the time they wait."""
    longest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Activations of one timeline. Arrays have shape (activations,), in order of ``made``; positions on its axis."""

    timeline: MemoryTimeline
    rows: Int64
    """Of the timeline's ``blocks``."""
    bytes: Int64
    made: Int64
    used_until: Int64
    """The forward call that made it returns."""
    needed_from: Int64
    """The node of the backward pass that lets it go begins."""
    freed: Int64
    by_module: tuple[ModuleActivations, ...]
    """Most idle bytes times time first."""

    @property
    def idle(self) -> Int64:
        """How long each one waits."""
        waits: Int64 = np.maximum(self.needed_from - self.used_until, 0)
        return waits

    @property
    def idle_byte_ns(self) -> int:
        """Sum of bytes times the time they wait, over all steps. Exact: it may be beyond 64 bits."""
        return sum(size * wait for size, wait in zip(self.bytes.tolist(), self.idle.tolist(), strict=True))


def memory_lifetimes(trace: Trace) -> tuple[Lifetimes, ...]:
    """Activations that were made and freed within the recording, for each memory on the clock that has some."""
    found = []
    for timeline in trace.fact(memory_timelines):
        if timeline.axis == "ns" and not timeline.of_driver:
            lifetimes = _lifetimes(timeline.of(trace), timeline)
            if len(lifetimes.rows):
                found.append(lifetimes)
    return tuple(found)


def _lifetimes(trace: Trace, timeline: MemoryTimeline) -> Lifetimes:
    blocks = timeline.blocks
    rows = np.flatnonzero(
        (blocks["category"] == MemoryCategory.ACTIVATION)
        & (blocks["phase"] == MemoryPhase.FORWARD)
        & ~blocks["before"]
        & ~blocks["after"]
    )
    made, freed, size = (blocks[name][rows].astype(np.int64) for name in ("start", "end", "bytes"))
    until = np.clip(_call_end(trace, blocks["op"][rows].astype(np.int64), made), made, freed)
    needed = np.clip(_node_start(trace, timeline, freed), until, freed)
    return Lifetimes(
        timeline=timeline,
        rows=rows,
        bytes=size,
        made=made,
        used_until=until,
        needed_from=needed,
        freed=freed,
        by_module=_by_module(trace, blocks["module"][rows], size, needed - until),
    )


def _call_end(trace: Trace, ops: Int64, made: Int64) -> Int64:
    slices = trace.rows["slices"]
    if not len(slices):
        return made
    codes = [code for code, text in enumerate(trace.strings) if text.startswith("nn.Module: ")]
    calls = np.isin(slices["name"], codes) & (slices["kind"] == SliceKind.PYTHON)
    around = nearest_ancestor(trace, ops, calls)
    around = np.where(around == MISSING, ops, around)
    return np.where(around == MISSING, made, slices["end_ns"][around])


def _node_start(trace: Trace, timeline: MemoryTimeline, freed: Int64) -> Int64:
    slices, memory = trace.rows["slices"], trace.rows["memory"]
    if not len(slices):
        return freed
    events = memory_rows(trace, "memory", memory_of(timeline))
    at = strictly_increasing(memory["time_ns"][events])
    index = np.minimum(np.searchsorted(at, freed), len(at) - 1)
    ops = np.where(at[index] == freed, memory["op"][events[index]], MISSING).astype(np.int64)
    node = nearest_ancestor(trace, ops, trace.fact(autograd_nodes))
    return np.where(node == MISSING, freed, slices["start_ns"][node])


def _by_module(trace: Trace, modules: Int64, size: Int64, idle: Int64) -> tuple[ModuleActivations, ...]:
    found = []
    for code in np.unique(modules).tolist():
        chosen = modules == code
        waits = idle[chosen].tolist()
        found.append(
            ModuleActivations(
                module=trace.text(code) or None,
                blocks=int(chosen.sum()),
                bytes=int(size[chosen].sum()),
                idle_byte_ns=sum(one * wait for one, wait in zip(size[chosen].tolist(), waits, strict=True)),
                longest_ns=max(waits),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.idle_byte_ns))
