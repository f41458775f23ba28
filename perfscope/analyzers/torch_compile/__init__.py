"""Compilations by torch.compile (frames, graphs, breaks, compile time) and by jax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.torch_compile.frames import plain_function, planned_breaks, where_of
from perfscope.analyzers.torch_compile.jax_compilations import compile_ns, compiled_functions
from perfscope.analyzers.torch_compile.summary import (
    BreakSummary,
    CompileSummary,
    FrameSummary,
    KernelSummary,
    RecompileSummary,
    compile_summary,
)
from perfscope.model.hooks import names_from

__all__ = [
    "BreakSummary",
    "CompileSummary",
    "FrameSummary",
    "KernelSummary",
    "RecompileSummary",
    "compile_ns",
    "compile_summary",
    "compiled_functions",
    "plain_function",
    "planned_breaks",
    "where_of",
]

if TYPE_CHECKING:
    from perfscope.analyzers.torch_compile.inductor_fusion import PlannedPair as PlannedPair
    from perfscope.analyzers.torch_compile.inductor_fusion import RefusedPair as RefusedPair
    from perfscope.analyzers.torch_compile.inductor_fusion import log_has_refusals as log_has_refusals
    from perfscope.analyzers.torch_compile.inductor_fusion import node_bytes as node_bytes
    from perfscope.analyzers.torch_compile.inductor_fusion import planned_pairs as planned_pairs
    from perfscope.analyzers.torch_compile.inductor_fusion import refused_pairs as refused_pairs
    from perfscope.analyzers.torch_compile.node_work import node_flops as node_flops
    from perfscope.analyzers.torch_compile.phases import Stage as Stage
    from perfscope.analyzers.torch_compile.phases import compile_times as compile_times
    from perfscope.analyzers.torch_compile.phases import exclusive_ns as exclusive_ns
    from perfscope.analyzers.torch_compile.phases import stage_of as stage_of
    from perfscope.analyzers.torch_compile.rules.compile_time import cache_use as cache_use
else:
    __getattr__ = names_from(
        __name__,
        {
            "inductor_fusion": "PlannedPair RefusedPair log_has_refusals node_bytes planned_pairs refused_pairs",
            "node_work": "node_flops",
            "phases": "Stage compile_times exclusive_ns stage_of",
            "rules.compile_time": "cache_use",
        },
    )
