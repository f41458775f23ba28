"""Events of XLA's allocators, as they stand among the host's spans: GPUs name the allocator, TPUs the device.

What an event says of the whole allocator agrees with xprof's memory profile: allocated bytes and those of the programs'
stacks are in use, their largest sum is the peak of the recording, and the allocator knows its own peak since it began.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfscope.analyzers.readers.builder import Columns
from perfscope.analyzers.readers.xspace.planes import Line
from perfscope.model.trace import MemoryAction
from perfscope.model.trace.columns import MISSING, Array

_ORDINAL = re.compile(r"(\d+)")


def events(line: Line, thread: int, freed: Array, chosen: Array, strings: Sequence[str]) -> Columns:
    """Columns of table ``memory`` for the chosen events of a line; sizes not negative yet, ``freed`` beside them."""
    allocators = line.number("allocator_name")[chosen]
    known = {int(key): strings[int(key)] for key in np.unique(allocators) if key != MISSING}
    on_device = {key: not any(side in text.lower() for side in ("host", "cpu")) for key, text in known.items()}
    ordinals = {
        key: int(found[1]) if on_device[key] and (found := _ORDINAL.search(text)) else MISSING
        for key, text in known.items()
    }
    named = np.array([ordinals.get(key, MISSING) for key in allocators.tolist()], np.int64)
    index = line.number("index_on_host")[chosen]
    peak = line.number("peak_bytes_in_use")[chosen]
    fragmentation = line.values[chosen]
    return {
        "time_ns": line.start_ns[chosen],
        "thread": np.full(len(index), thread, np.int32),
        "on_device": np.array([on_device.get(key, False) for key in allocators.tolist()], bool) | (index != MISSING),
        "ordinal": np.where(index != MISSING, index, named),
        "address": np.where(line.number("addr") == MISSING, 0, line.number("addr"))[chosen].astype(np.uint64),
        "bytes": line.number("allocation_bytes")[chosen],
        "freed": freed[chosen],
        "requested_bytes": line.number("requested_bytes")[chosen],
        "allocated_bytes": line.number("bytes_allocated")[chosen],
        "stack_bytes": line.number("bytes_reserved")[chosen],
        "peak_bytes": peak,
        # written together with the peak; a fragmentation of zero is not told from none on the wire
        "fragmentation": np.where(np.isnan(fragmentation) & (peak != MISSING), 0.0, fragmentation),
    }


def with_sizes(columns: Columns) -> tuple[Columns, int]:
    """The columns with the size of every deallocation, negative, and the action; and of how many nothing tells it.

    TPUs write no size there: the block's own allocation says it, else by how much the allocator's total fell since
    the event before. ``columns`` are in order of time; those of unknown size are left out.
    """
    freed = columns.pop("freed")
    size = columns["bytes"].copy()
    unknown = np.zeros(len(freed), bool)
    held: dict[tuple[bool, int, int], int] = {}
    total: dict[tuple[bool, int], int] = {}
    names = ("on_device", "ordinal", "address", "bytes", "allocated_bytes")
    rows = zip(freed.tolist(), *(columns[name].tolist() for name in names), strict=True)
    for row, (gone, on_device, ordinal, address, told, allocated) in enumerate(rows if (size == MISSING).any() else ()):
        memory = (on_device, ordinal)
        if not gone:
            held[*memory, address] = told
            unknown[row] = told == MISSING
        elif told == MISSING:
            fell = total[memory] - allocated if memory in total and allocated != MISSING else 0
            size[row] = held.pop((*memory, address), fell)
            unknown[row] = size[row] <= 0
        if allocated != MISSING:
            total[memory] = allocated
    columns["bytes"] = np.where(freed, -size, size)
    columns["action"] = np.where(freed, MemoryAction.FREE, MemoryAction.ALLOCATE)
    return {name: values[~unknown] for name, values in columns.items()}, int(unknown.sum())
