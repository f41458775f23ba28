"""Compilations by torch.compile (frames, graphs, breaks, compile time) and by jax."""

from __future__ import annotations

from perfscope.analyzers.torch_compile.frames import plain_function, planned_breaks, where_of
from perfscope.analyzers.torch_compile.jax_compilations import compile_ns, compiled_functions
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
    "compile_ns",
    "compile_summary",
    "compiled_functions",
    "plain_function",
    "planned_breaks",
    "where_of",
]
