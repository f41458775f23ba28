"""An allocator's own totals beside the blocks: what no block tells of, and where the two differ.

On the host two allocators report to torch.profiler. That of the CPU counts what it hands out, and reserves nothing.
Tensors in shared memory (batches of a ``DataLoader``'s workers) and mapped files are another's, which counts nothing:
its events say no bytes in use, and its block as *reserved* (``MapAllocator`` in ``aten/src/ATen/MapAllocator.cpp``).
Such blocks are in use like others, but no part of the totals, and there is no reserve of which that is a size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.model.memory import Int64, MemoryTimeline, Pairs
from perfscope.model.trace import MISSING, Rows
from perfscope.model.trace.tables import MemoryAction
from perfscope.model.units import format_bytes

Flags = npt.NDArray[np.bool_]


def mapped_blocks(rows: Rows, picked: Int64, pairs: Pairs) -> Flags:
    """Which blocks of the host's memory are mapped ones, (blocks,). ``picked``: the rows that were paired.

    One that was made before the recording is known by its free, which says that nothing is in use: a free of the
    CPU's allocator, which may say so too, has its allocation recorded or is not reported.
    """
    reserved, total = rows["reserved_bytes"][picked], rows["allocated_bytes"][picked]
    size = np.abs(rows["bytes"][picked])
    event_is_mapped = (reserved > 0) & (reserved == size) & (total == 0)
    if not event_is_mapped.any():
        return np.zeros(len(pairs.made), bool)
    made = pairs.made != MISSING
    found: Flags = np.where(made, event_is_mapped[pairs.made], total[pairs.freed] == 0)
    return found


def unseen_bytes(
    rows: Rows,
    picked: Int64,
    timeline: MemoryTimeline,
    at: Int64,
    pairs: Pairs,
    mapped: Flags,
) -> tuple[int, list[str]]:
    """What the allocator counts at the first event and no block tells of; and how its totals differ from the blocks.

    ``at``: positions of ``picked``; ``mapped``: blocks of ``pairs`` that the totals leave out.
    """
    totals = rows["allocated_bytes"][picked]
    counted = (totals != MISSING) & (rows["action"][picked] != MemoryAction.HELD_BEFORE)
    beside = _mapped_bytes(np.abs(rows["bytes"][picked]), pairs, mapped, counted)
    recorded = np.flatnonzero(counted)
    if not len(recorded):
        return 0, []
    curve = timeline.live()
    ours = curve.bytes[np.searchsorted(curve.positions, at[recorded], side="right") - 1] - beside[recorded]
    unseen = int(totals[recorded[0]] - ours[0])
    notes = []
    if unseen < 0:
        notes.append(
            f"the allocator's own total leaves out {format_bytes(-unseen)} that the program held before the recording"
        )
    differs = totals[recorded] - ours - unseen
    wrong = int((differs != 0).sum())
    if wrong:
        notes.append(
            f"at {wrong} of {len(recorded)} events the allocator's own total differs from its events, by up to "
            f"{format_bytes(int(np.abs(differs).max()))}"
        )
    return max(unseen, 0), notes


def _mapped_bytes(size: Int64, pairs: Pairs, mapped: Flags, counted: Flags) -> Int64:
    """Bytes of mapped blocks in use behind each event, (events,). Their own events are taken out of ``counted``."""
    change = np.zeros(len(size), np.int64)
    made, freed = pairs.made[mapped], pairs.freed[mapped]
    ended = np.where(freed == MISSING, pairs.replaced[mapped], freed)
    held = size[np.where(made == MISSING, freed, made)]
    seen, over = made != MISSING, ended != MISSING
    np.add.at(change, made[seen], held[seen])
    np.subtract.at(change, ended[over], held[over])
    counted[made[seen]] = False
    counted[freed[freed != MISSING]] = False
    behind: Int64 = np.cumsum(change) + int(held[~seen].sum())
    return behind
