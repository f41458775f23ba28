"""Memory over time as blocks with owners, from any recording."""

from __future__ import annotations

from perfscope.analyzers.memory.trace_memories import (
    MOST_PROGRAMS,
    HeldCategory,
    Holders,
    Memory,
    Reserved,
    trace_memories,
)

__all__ = ["MOST_PROGRAMS", "HeldCategory", "Holders", "Memory", "Reserved", "trace_memories"]
