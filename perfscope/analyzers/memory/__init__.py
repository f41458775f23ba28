"""Memory over time as blocks with owners, from any recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.memory.trace_memories import (
    MOST_PROGRAMS,
    HeldCategory,
    Holders,
    Memory,
    Reserved,
    trace_memories,
)
from perfscope.model.hooks import names_from

__all__ = ["MOST_PROGRAMS", "HeldCategory", "Holders", "Memory", "Reserved", "trace_memories"]

if TYPE_CHECKING:
    from perfscope.analyzers.memory.blocks import event_timelines as event_timelines
    from perfscope.analyzers.memory.categories import memory_timelines as memory_timelines
    from perfscope.analyzers.memory.holders import SCARCE_SHARE as SCARCE_SHARE
    from perfscope.analyzers.memory.holders import UNSEEN as UNSEEN
    from perfscope.analyzers.memory.holders import Holder as Holder
    from perfscope.analyzers.memory.holders import PeakHolders as PeakHolders
    from perfscope.analyzers.memory.holders import judged_timelines as judged_timelines
    from perfscope.analyzers.memory.holders import memory_holders as memory_holders
    from perfscope.analyzers.memory.holders import peak_held as peak_held
    from perfscope.analyzers.memory.over_run import RunCurve as RunCurve
    from perfscope.analyzers.memory.over_run import memory_over_run as memory_over_run
    from perfscope.analyzers.memory.picture import Band as Band
    from perfscope.analyzers.memory.picture import MemoryPicture as MemoryPicture
    from perfscope.analyzers.memory.picture import memory_picture as memory_picture
    from perfscope.analyzers.memory.tables.memory_owners import GROUPINGS as GROUPINGS
    from perfscope.analyzers.memory.tables.memory_owners import RESULT as RESULT
    from perfscope.analyzers.memory.tables.memory_owners import owners as owners
    from perfscope.analyzers.memory.tables.peak_blocks import Block as Block
else:
    __getattr__ = names_from(
        __name__,
        {
            "blocks": "event_timelines",
            "categories": "memory_timelines",
            "holders": "Holder PeakHolders SCARCE_SHARE UNSEEN judged_timelines memory_holders peak_held",
            "over_run": "RunCurve memory_over_run",
            "picture": "Band MemoryPicture memory_picture",
            "tables.memory_owners": "GROUPINGS RESULT owners",
            "tables.peak_blocks": "Block",
        },
    )
