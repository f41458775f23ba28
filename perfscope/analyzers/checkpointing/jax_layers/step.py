"""The memory of a compiled program's step as values with a lifetime, and what is held throughout."""

from __future__ import annotations

from perfscope.analyzers.checkpointing.step_model import Value
from perfscope.analyzers.hlo.buffers import arena_of
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.programs.blocks import program_timelines
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory


def timeline_of(trace: Trace, module: HloModule) -> MemoryTimeline:
    """That of ``module``: programs that are not scheduled have none."""
    at = [one for one in trace.hlo if arena_of(one) is not None or one.is_scheduled].index(module)
    return trace.fact(program_timelines)[at]


def held_bytes(timeline: MemoryTimeline) -> dict[MemoryCategory, int]:
    """Bytes held from the first position to the last: parameters, optimizer state, and all else as ``UNKNOWN``."""
    found = {MemoryCategory.PARAMETER: 0, MemoryCategory.OPTIMIZER_STATE: 0, MemoryCategory.UNKNOWN: 0}
    blocks = timeline.blocks
    for row in range(len(blocks["bytes"])):
        if _lasts(timeline, row):
            category = MemoryCategory(int(blocks["category"][row]))
            found[category if category in found else MemoryCategory.UNKNOWN] += int(blocks["bytes"][row])
    return found


def _lasts(timeline: MemoryTimeline, row: int) -> bool:
    blocks = timeline.blocks
    return bool(blocks["start"][row] <= timeline.first and blocks["end"][row] > timeline.last)


def values_of(timeline: MemoryTimeline) -> tuple[Value, ...]:
    """Blocks that do not last, none of which any layer makes again by general rules."""
    blocks = timeline.blocks
    return tuple(
        Value(
            bytes=int(blocks["bytes"][row]),
            birth=int(blocks["start"][row]),
            death=int(blocks["end"][row]),
            last_forward_use=int(blocks["start"][row]),
            kind="other",
            region=None,
            needed_by=frozenset(),
            cost_ns=0,
            gradient=blocks["category"][row] == MemoryCategory.GRADIENT,
        )
        for row in range(len(blocks["bytes"]))
        if not _lasts(timeline, row)
    )


def parameter_width(module: HloModule) -> int:
    """Bytes of an element of most of the arguments' memory."""
    sizes: dict[int, int] = {}
    for one in module.entry_computation().instructions:
        if one.opcode == "parameter" and one.shape.elements:
            width = max(1, one.shape.bytes // one.shape.elements)
            sizes[width] = sizes.get(width, 0) + one.shape.bytes
    return max(sizes, key=lambda width: sizes[width], default=4)
