"""Sources that are no recording of a run: compiled programs, memory snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis

PROGRAM_FORMATS = frozenset({"compiled", "hlo_proto", "hlo_text"})
"""Formats that hold compiled or planned programs and no recording of their run."""


def programs_alone(analysis: Analysis) -> bool:
    """Compiled programs and no recording: they have neither events nor steps nor devices."""
    return bool(analysis.sources) and all(
        PROGRAM_FORMATS.issuperset(source.format.split(", ")) for source in analysis.sources
    )


MEMORY_FORMATS = frozenset({"jax_memory", "torch_memory"})
"""Formats of memory snapshots: they hold neither steps nor work."""


def memory_alone(analysis: Analysis) -> bool:
    """Memory snapshots and no recording of a run."""
    return bool(analysis.sources) and all(source.format in MEMORY_FORMATS for source in analysis.sources)
