"""Memory of the process over all steps of a run: readings after steps without a profiler.

Between two readings the memory is unknown. The bytes that a compiled program holds while it runs, besides the arrays of
its caller, follow from XLA's schedule of its buffers and are added as one number.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.analyzers.memory.trace_memories import trace_memories
from perfscope.analyzers.time import framework
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

MOST_READINGS = 200
"""Readings of a curve; of more, those at equal distances, and the largest."""

LEAST_READINGS = 3
"""Minimum number of readings of a curve."""

_INSIDE = frozenset({MemoryCategory.ACTIVATION, MemoryCategory.GRADIENT, MemoryCategory.TEMPORARY})

Kind = Literal["arrays", "device", "resident"]


class RunCurve(Struct, frozen=True, kw_only=True):
    """One memory after steps of the run."""

    kind: Kind
    """arrays: living arrays of JAX on all devices; device: allocated by torch; resident: the whole process."""
    rank: int | None
    steps: tuple[int, ...]
    """Numbers of the steps, rising."""
    bytes: tuple[int, ...]
    """After each of them."""
    inside_bytes: int | None = None
    """Modelled: what the program with the largest peak needs besides, while it runs; None if unknown."""


def memory_over_run(trace: Trace) -> tuple[RunCurve, ...]:
    """Return the curves of a run; empty without readings."""
    rows = trace.rows["run_memory"]
    if len(rows) < LEAST_READINGS:
        return ()
    kind: Kind = "arrays" if framework(trace) == "jax" else "device"
    columns: tuple[tuple[Kind, str], ...] = ((kind, "device_bytes"), ("resident", "rss_bytes"))
    curves = []
    for name, column in columns:
        known = np.flatnonzero((rows[column] != MISSING) & (rows[column] > 0))
        if len(known) < LEAST_READINGS:
            continue
        values = rows[column][known]
        if len(known) > MOST_READINGS:
            chosen = np.linspace(0, len(known) - 1, MOST_READINGS - 1).astype(np.int64)
            known = known[np.unique(np.append(chosen, values.argmax()))]
        curves.append(
            RunCurve(
                kind=name,
                rank=trace.source.rank,
                steps=tuple(rows["step"][known].tolist()),
                bytes=tuple(rows[column][known].tolist()),
                inside_bytes=_inside(trace) if name == "arrays" else None,
            )
        )
    return tuple(curves)


def _inside(trace: Trace) -> int | None:
    """Return the activations, gradients and temporaries at the peak of the program with the largest one."""
    programs = [memory for memory in trace.fact(trace_memories).memories if memory.space == "program"]
    if not programs:
        return None
    largest = max(programs, key=lambda memory: memory.peak_bytes)
    return sum(held.bytes for held in largest.by_category if held.category in _INSIDE)
