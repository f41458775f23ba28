"""A small simulation of torch's CUDA caching allocator, for tests on machines without a GPU.

It follows the documentation in c10/cuda/CUDACachingAllocator.cpp, on one stream and with default settings: sizes are
rounded up to 512 B; up to 1 MiB are served from segments of 2 MiB, larger ones from 20 MiB, those of 10 MiB and more
from separate segments in multiples of 2 MiB; the smallest free block that fits is taken and split (small pool: any
rest; large pool: a rest over 1 MiB); free neighbours are merged; if the device is full, entirely free segments are
returned before the allocation fails. A snapshot of it has the layout of ``torch.cuda.memory._snapshot()``. It is
simulated, not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
ROUND, SMALL, SMALL_SEGMENT, LARGE_SEGMENT, OWN_SEGMENT, ROUND_LARGE = 512, MIB, 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB
FIRST_ADDRESS = 1 << 40


class OutOfMemoryError(Exception):
    """The device is full."""


@dataclass(eq=False)
class Block:
    address: int
    size: int
    requested: int | None = None
    """None: it is free."""


@dataclass(eq=False)
class Segment:
    address: int
    size: int
    small: bool
    blocks: list[Block] = field(default_factory=list)


class CachingAllocator:
    """``allocate`` gives an address that ``free`` takes. ``capacity``: bytes of the device."""

    def __init__(self, capacity: int = 1 << 60) -> None:
        self.capacity = capacity
        self.stack: Sequence[tuple[str, str, int]] = ()
        """Function, file and line of the frames that allocate now, innermost first."""
        self.segments: list[Segment] = []
        self.events: list[dict[str, Any]] = []
        self._next = FIRST_ADDRESS

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def allocated(self) -> int:
        return sum(b.size for segment in self.segments for b in segment.blocks if b.requested is not None)

    def allocate(self, requested: int) -> int:
        size = max(ROUND, -(-requested // ROUND) * ROUND)
        small = size <= SMALL
        segment, block = self._best_fit(size, small) or self._new_segment(size, small)
        rest = block.size - size
        if rest >= ROUND if small else rest > SMALL:
            block.size = size
            segment.blocks.insert(segment.blocks.index(block) + 1, Block(block.address + size, rest))
        block.requested = requested
        self._event("alloc", block.address, requested)
        return block.address

    def free(self, address: int) -> None:
        segment, block = next((s, b) for s in self.segments for b in s.blocks if b.address == address)
        assert block.requested is not None, "freed twice"
        for action in ("free_requested", "free_completed"):
            self._event(action, address, block.requested)
        block.requested = None
        merged: list[Block] = []
        for one in segment.blocks:
            if merged and merged[-1].requested is None and one.requested is None:
                merged[-1].size += one.size
            else:
                merged.append(one)
        segment.blocks = merged

    def snapshot(self) -> dict[str, Any]:
        return {"segments": [self._described(segment) for segment in self.segments], "device_traces": [self.events]}

    def _best_fit(self, size: int, small: bool) -> tuple[Segment, Block] | None:
        free = [
            (block.size, block.address, segment, block)
            for segment in self.segments
            for block in segment.blocks
            if segment.small == small and block.requested is None and block.size >= size
        ]
        return min(free, key=lambda one: one[:2])[2:] if free else None

    def _new_segment(self, size: int, small: bool) -> tuple[Segment, Block]:
        own = -(-size // ROUND_LARGE) * ROUND_LARGE
        wanted = SMALL_SEGMENT if small else LARGE_SEGMENT if size < OWN_SEGMENT else own
        if self.reserved + wanted > self.capacity:
            for segment in [one for one in self.segments if all(block.requested is None for block in one.blocks)]:
                self.segments.remove(segment)
                self._event("segment_free", segment.address, segment.size)
        if self.reserved + wanted > self.capacity:
            self._event("oom", 0, wanted)
            raise OutOfMemoryError(wanted)
        segment = Segment(self._next, wanted, small, [Block(self._next, wanted)])
        self._next += wanted
        self.segments.append(segment)
        self._event("segment_alloc", segment.address, wanted)
        return segment, segment.blocks[0]

    def _event(self, action: str, address: int, size: int) -> None:
        at = len(self.events) + 1
        frames = [{"name": name, "filename": file, "line": line} for name, file, line in self.stack]
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": at, "frames": frames}
        self.events.append(entry)

    def _described(self, segment: Segment) -> dict[str, Any]:
        held = [block for block in segment.blocks if block.requested is not None]
        size = sum(block.size for block in held)
        return {
            "device": 0,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": size,
            "active_size": size,
            "requested_size": sum(block.requested or 0 for block in held),
            "stream": 0,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested or 0,
                    "state": "inactive" if block.requested is None else "active_allocated",
                    "frames": [],
                }
                for block in segment.blocks
            ],
        }
