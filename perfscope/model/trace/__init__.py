"""The model: declared tables, and a trace that is checked against them."""

from perfscope.model.trace.builder import TraceBuilder
from perfscope.model.trace.columns import MISSING, Column, Rows, Table
from perfscope.model.trace.tables import (
    TABLES,
    CallKind,
    CopyKind,
    HeldState,
    HostMemory,
    MemoryAction,
    MemoryCategory,
    SliceKind,
)
from perfscope.model.trace.trace import MEMORY_TABLES, RECORDED, Part, Source, Trace, recording_words

__all__ = [
    "MEMORY_TABLES",
    "MISSING",
    "RECORDED",
    "TABLES",
    "CallKind",
    "Column",
    "CopyKind",
    "HeldState",
    "HostMemory",
    "MemoryAction",
    "MemoryCategory",
    "Part",
    "Rows",
    "SliceKind",
    "Source",
    "Table",
    "Trace",
    "TraceBuilder",
    "recording_words",
]
