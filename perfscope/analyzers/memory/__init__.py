"""The model of memory over time: blocks with an owner, whatever recorded them."""

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
