"""From allocator events to blocks: every allocation is paired with the free that ends it. Vectorised.

Within the events of one address, in the order they happened, an allocation followed by a free is a block. A free
that comes first at its address ends a block that was held before the recording began. An allocation with no free
behind it is still held at the end. What fits none of this is counted and not repaired by a guess: a free behind a
free (the allocation between them is missing), and an allocation behind an allocation (the free between them is
missing: the earlier block ends where the later one begins, since no address is handed out twice).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.trace import MISSING

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Blocks as indices into the events they were paired from. Shapes (blocks,), in order of ``made``.

    ``MISSING`` in ``made``: held before the recording, and ``freed`` is then the event that says so.
    ``MISSING`` in ``freed``: nothing freed it.
    """

    made: Int64
    freed: Int64
    replaced: Int64
    """Index of the allocation that took the block's address while nothing had freed it; else ``MISSING``."""
    unmatched: int
    """Events without a partner that should have one."""
    resized: int
    """Blocks whose free has another number of bytes than their allocation."""


def pair_events(addresses: npt.NDArray[np.uint64], size: Int64, is_free: npt.NDArray[np.bool_]) -> Pairs:
    """Blocks of one memory. All arrays have shape (events,), in the order the events happened.

    ``size``: bytes, not negative, of the allocation or of the free.
    """
    count = len(addresses)
    order = np.argsort(addresses, kind="stable")
    sorted_addresses, freeing = addresses[order], is_free[order]
    begins = np.ones(count, bool)
    begins[1:] = sorted_addresses[1:] != sorted_addresses[:-1]
    follows = np.zeros(count, bool)  # the next event is of the same address
    follows[:-1] = ~begins[1:]
    after_free = np.zeros(count, bool)
    after_free[1:] = freeing[:-1]

    makes = np.flatnonzero(~freeing)
    next_frees = np.zeros(count, bool)
    next_frees[:-1] = freeing[1:]
    next_event = np.minimum(makes + 1, count - 1)
    freed = np.where(follows[makes] & next_frees[makes], order[next_event], MISSING)
    replaced = np.where(follows[makes] & ~next_frees[makes], order[next_event], MISSING)
    early = np.flatnonzero(freeing & begins)

    made = np.concatenate((np.full(len(early), MISSING, np.int64), order[makes]))
    freed = np.concatenate((order[early], freed))
    replaced = np.concatenate((np.full(len(early), MISSING, np.int64), replaced))
    by_start = np.argsort(made, kind="stable")
    made, freed, replaced = made[by_start], freed[by_start], replaced[by_start]
    both = (made != MISSING) & (freed != MISSING)
    return Pairs(
        made=made,
        freed=freed,
        replaced=replaced,
        unmatched=int((freeing & ~begins & after_free).sum() + (replaced != MISSING).sum()),
        resized=int((size[made[both]] != size[freed[both]]).sum()),
    )


def strictly_increasing(times: Int64) -> Int64:
    """Positions for events in the order they happened: their times, each at least 1 behind the one before.

    Allocators record in microseconds, or several events in one nanosecond; a block freed and one made in the same
    instant must not cancel out, or a peak between them is lost. Shape (n,) in and out.
    """
    steps = np.arange(len(times), dtype=np.int64)
    return np.asarray(np.maximum.accumulate(times - steps) + steps, np.int64)
