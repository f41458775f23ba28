"""A file that holds compiled programs and nothing else, as a trace without rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.readers._fusion_dump import refusals_beside
from perfscope.analyzers.trace import Source, Trace


def program_trace(path: str, format_name: str, modules: Sequence[HloModule]) -> Trace:
    """The trace of modules that were handed in alone: nothing was measured, and the source says so."""
    instructions = sum(len(one.instructions) for module in modules for one in module.computations.values())
    notes = ["this is a compiled program, not a recording of its run: every number is modelled or structural"]
    notes.extend(
        f"{module.name} is the program before XLA optimized it: what XLA fuses is not fused in it yet"
        for module in modules
        if not module.is_scheduled and module.platform is None
    )
    refused, problem = refusals_beside(Path(path))
    if refused and len(modules) == 1:
        modules = [replace(modules[0], fusion_refusals=refused)]
    if problem is not None:
        notes.append(problem)
    source = Source(
        path=path,
        format=format_name,
        rank=None,
        events_read=instructions,
        events_unplaced=0,
        notes=tuple(notes),
    )
    return Trace(source=source, strings=[], rows={}, recorded=frozenset({"hlo"}), hlo=tuple(modules))
