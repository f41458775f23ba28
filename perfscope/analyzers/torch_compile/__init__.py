"""What torch.compile did: frames, graphs, breaks, compile time."""

from __future__ import annotations

from perfscope.analyzers.torch_compile.frames import plain_function, planned_breaks, where_of
from perfscope.analyzers.torch_compile.summary import (
    BreakSummary,
    CompileSummary,
    FrameSummary,
    GraphGroup,
    KernelSummary,
    RecompileSummary,
    compile_summary,
)

__all__ = [
    "BreakSummary",
    "CompileSummary",
    "FrameSummary",
    "GraphGroup",
    "KernelSummary",
    "RecompileSummary",
    "compile_summary",
    "plain_function",
    "planned_breaks",
    "where_of",
]
