"""The benchmark script of a collective."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from perfscope.analyzers.ops import canonical_dtype
from perfscope.analyzers.ranks import Local, locals_of
from perfscope.model.errors import UsageError
from perfscope.model.trace import Trace
from perfscope.plugins.replay.arguments import DTYPES, MOST_ELEMENTS
from perfscope.plugins.replay.template import COLLECTIVE_TEMPLATE, assignments

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def collective_script(trace: Trace, operation: str) -> str:
    """Build the script for the costliest messages of that operation; ``UsageError`` without recorded sizes."""
    kinds: dict[tuple[int, str, int | None], list[Local]] = defaultdict(list)
    for local in trace.fact(locals_of):
        dtype = canonical_dtype((local.dtype or "").lower())
        if local.operation == operation and dtype in DTYPES and 0 < (local.elements or 0) <= MOST_ELEMENTS:
            kinds[local.elements or 0, dtype, local.size].append(local)
    if not kinds:
        raise UsageError(f"replay: no {operation} with its size and dtype was recorded")
    (elements, dtype, size), calls = max(kinds.items(), key=lambda kind: sum(local.duration_ns for local in kind[1]))
    return assignments(
        COLLECTIVE_TEMPLATE,
        OPERATION=operation,
        ELEMENTS=elements,
        DTYPE=dtype,
        RANKS=size,
        RECORDED_US=median(local.duration_ns for local in calls) / 1000,
        RECORDED=f"with waiting for other ranks, median of {len(calls)} calls",
    )
