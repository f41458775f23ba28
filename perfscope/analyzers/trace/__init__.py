"""The model: declared tables, and a trace that is held to them."""

from perfscope.analyzers.trace.columns import MISSING, Column, Rows, Table
from perfscope.analyzers.trace.memory_tables import HeldState, MemoryAction, MemoryCategory
from perfscope.analyzers.trace.tables import TABLES, CallKind, CopyKind, HostMemory, SliceKind
from perfscope.analyzers.trace.trace import MEMORY_TABLES, RECORDED, Source, Trace

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
    "Rows",
    "SliceKind",
    "Source",
    "Table",
    "Trace",
]
