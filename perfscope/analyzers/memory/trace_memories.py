"""Each memory of a trace in a bounded form: its peak and who holds it, what is reserved, room left, and its picture.

Small enough to travel from where the trace was read to where a report is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.memory.fragmentation import Fragmentation, fragmentation_of, in_use
from perfscope.analyzers.memory.growth import growth_of, steps_until_full
from perfscope.analyzers.memory.holders import Holder, PeakHolders, memory_holders
from perfscope.analyzers.memory.phases import asking_op
from perfscope.analyzers.memory.picture import MemoryPicture, memory_picture
from perfscope.analyzers.time import step_windows
from perfscope.model.finding import Basis
from perfscope.model.memory import Axis, KnownBy, MemoryPhase, MemoryTimeline, SourceLine, Space
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

MOST_PROGRAMS = 12
"""Compiled programs of a trace, those with the highest peaks: a few matter, dozens are of one op each."""

MOST_HOLDERS = 20
"""Modules and lines of a peak: those below the twentieth hold a percent or two each."""


LARGEST = 20
"""Blocks of a peak that are named by their op where nothing else names them."""


class Holders(Struct, frozen=True, kw_only=True):
    """A peak by owner, most bytes first. ``rows`` and ``left_bytes`` sum to the peak, exactly."""

    rows: tuple[Holder, ...]
    """At most 20, most bytes first."""
    left: int = 0
    """Owners that are not in ``rows``."""
    left_bytes: int = 0
    """Theirs. With the rows it sums to the peak, exactly."""


class HeldCategory(Struct, frozen=True, kw_only=True):
    """A category's part of a peak: how it is known, and the place that holds most of it."""

    category: MemoryCategory
    bytes: int
    blocks: int
    known_by: KnownBy
    """Of most of its bytes."""
    place: SourceLine | None
    """Line that asked for most of it; None where that is not known."""
    name: str | None
    """Op, module, tensor or instruction of its largest block, the first of these that is known."""
    place_bytes: int
    """What that line holds of it; without a line, the largest block."""


class Reserved(Struct, frozen=True, kw_only=True):
    """What an allocator (or the program) held from the driver. Bytes."""

    peak_bytes: int
    """Most that was held from the driver."""
    allocated_bytes: int | None
    """Handed out when most was reserved; None for programs."""
    as_requested: bool
    """``allocated_bytes`` are as asked for: what rounding added counts as not handed out."""
    requested_bytes: int | None
    """Asked for, of that; None where that was not recorded."""
    excess_bytes: int | None
    """The peak of reserved memory less the peak of used memory: upper bound of what better packing saves.
    None where less was reserved than was in use: one of the two is not complete."""
    split_bytes: int | None
    """Free at the snapshot and not to be given back; None without a snapshot."""
    largest_free_bytes: int | None

    @property
    def fragmentation(self) -> float | None:
        """Share of the most that was reserved that was not handed out then; None where less was reserved than that."""
        if self.allocated_bytes is None or not self.peak_bytes or self.allocated_bytes > self.peak_bytes:
            return None
        return (self.peak_bytes - self.allocated_bytes) / self.peak_bytes


class Growing(Struct, frozen=True, kw_only=True):
    """What a memory holds at the ends of steps, where there are enough of them to tell growth from chance."""

    steps: int
    growing: bool
    bytes_per_step: float
    """Median slope behind the first step."""
    steps_left: int | None
    """Until the device is full."""


class Memory(Struct, frozen=True, kw_only=True):
    """One memory of one trace."""

    rank: int | None
    space: Space
    """program: what a compiled program will need."""
    label: str
    known_from: str
    """Such as CUDA memory snapshot."""
    axis: Axis
    """Unit of positions: ns, events or instructions."""
    basis: Basis
    of_driver: bool
    """Blocks are what an allocator took from the driver, and not what tensors lie in."""
    first: int
    last: int
    """First and last position; the same: one moment was recorded."""
    peak_bytes: int
    rounded_peak_bytes: int | None
    """Most in use in blocks of the allocator, which rounds sizes up (`torch.cuda.max_memory_allocated`), where
    ``peak_bytes`` is of sizes as asked for; None where it is of blocks already, or the allocator does not round."""
    peak_position: int
    phase: MemoryPhase
    """At the peak."""
    step: int | None
    op: str | None
    """Op or instruction that asked for the block that made the peak."""
    line: SourceLine | None
    by_category: tuple[HeldCategory, ...]
    """Most bytes first; with unseen_bytes it sums to the peak, exactly."""
    by_module: Holders
    by_line: Holders
    unseen_bytes: int
    """Held when the recording began, owner unknown; a part of the peak, and of no category."""
    reserved: Reserved | None
    capacity_bytes: int | None
    """Memory of the device."""
    out_of_memory: int
    """Allocations that failed."""
    failed_bytes: int | None
    """The most that was asked for in vain, where recorded."""
    unmatched: int
    """Events that belong to no block."""
    growth: Growing | None
    """null: too few steps to tell growth from chance."""
    notes: tuple[str, ...]
    picture: MemoryPicture | None

    @property
    def taken_bytes(self) -> int:
        """Most that was taken from the device: reserved where that is known, else in use."""
        return max(self.peak_bytes, self.reserved.peak_bytes if self.reserved is not None else 0)

    @property
    def headroom_bytes(self) -> int | None:
        """What the device had left at its fullest; None where its size was not recorded."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.taken_bytes


class TraceMemories(Struct, frozen=True, kw_only=True):
    """The memories of one trace, highest peak first, and how many more programs it has."""

    memories: tuple[Memory, ...]
    left: int


def trace_memories(trace: Trace) -> TraceMemories:
    """The memories of one trace. A fact: all that the section reads of a trace."""
    # a device of which nothing was in use is told of all the same: of what it reserved, and of what failed
    known = (peak for peak in trace.fact(memory_holders) if peak.bytes or peak.timeline.space != "program")
    peaks = sorted(known, key=lambda peak: -peak.bytes)
    of_programs = [peak for peak in peaks if peak.timeline.space == "program"]
    # devices and the host are few
    chosen = [*(peak for peak in peaks if peak.timeline.space != "program"), *of_programs[:MOST_PROGRAMS]]
    memories = sorted((_memory(trace, peak) for peak in chosen), key=lambda memory: -memory.peak_bytes)
    return TraceMemories(memories=tuple(memories), left=len(peaks) - len(chosen))


def _memory(trace: Trace, peak: PeakHolders) -> Memory:
    timeline = peak.timeline
    fragmentation, growth = fragmentation_of(trace, timeline), growth_of(trace, timeline)
    failures = () if fragmentation is None else fragmentation.failures
    return Memory(
        rank=trace.source.rank,
        space=timeline.space,
        label=timeline.label,
        known_from=timeline.known_from,
        axis=timeline.axis,
        basis=timeline.basis,
        of_driver=timeline.of_driver,
        first=timeline.first,
        last=timeline.last,
        peak_bytes=peak.bytes,
        rounded_peak_bytes=_rounded_peak(timeline, fragmentation),
        peak_position=peak.position,
        phase=peak.phase,
        step=_step(trace, timeline, peak),
        op=peak.op or _maker(trace, peak),
        line=peak.line,
        by_category=_categories(trace, peak),
        by_module=_holders(peak.by_module),
        by_line=_holders(peak.by_line),
        unseen_bytes=peak.unseen_bytes,
        reserved=_reserved(peak, fragmentation),
        # what was held before the recording takes an unknown part of the device
        capacity_bytes=None if timeline.sums_only else timeline.capacity_bytes,
        out_of_memory=len(timeline.out_of_memory),
        failed_bytes=max((failure.failed_bytes for failure in failures if failure.failed_bytes), default=None),
        unmatched=timeline.unmatched,
        growth=None
        if growth is None or not growth.by_trend
        else Growing(
            steps=growth.steps,
            growing=growth.growing,
            bytes_per_step=growth.slope_bytes,
            steps_left=steps_until_full(growth.timeline, growth.slope_bytes) if growth.growing else None,
        ),
        notes=timeline.notes,
        picture=memory_picture(trace, timeline) if timeline.first != timeline.last else None,
    )


def _step(trace: Trace, timeline: MemoryTimeline, peak: PeakHolders) -> int | None:
    """Number of the step that the peak is in: of its block, else by the clock."""
    if peak.step is not None or timeline.axis != "ns" or timeline.space == "program":
        return peak.step
    windows = timeline.of(trace).fact(step_windows)
    inside = np.flatnonzero((windows.starts <= peak.position) & (peak.position < windows.ends))
    return int(windows.numbers[inside[0]]) if len(inside) else None


def _maker(trace: Trace, peak: PeakHolders) -> str | None:
    """Name of the block that made the peak: the instruction of a program."""
    blocks = peak.timeline.blocks
    making = np.flatnonzero((blocks["start"] == peak.position) & ~blocks["before"])
    return peak.timeline.text(int(blocks["name"][making[-1]])) or None if len(making) else None


def _categories(trace: Trace, peak: PeakHolders) -> tuple[HeldCategory, ...]:
    timeline = peak.timeline
    rows = timeline.alive_at(peak.position)
    category, size = timeline.blocks["category"][rows], timeline.blocks["bytes"][rows]
    held_categories = []
    for code in np.unique(category).tolist():
        chosen = rows[category == code]
        line_index, bytes_ = _most(timeline.blocks["line"][chosen], timeline.blocks["bytes"][chosen])
        known, _ = _most(timeline.blocks["known_by"][chosen], timeline.blocks["bytes"][chosen])
        lined = line_index != MISSING
        held_categories.append(
            HeldCategory(
                category=MemoryCategory(code),
                bytes=int(size[category == code].sum()),
                blocks=int(timeline.blocks["count"][chosen].sum()),
                known_by=KnownBy(known),
                place=timeline.lines[line_index] if lined else None,
                name=_block_name(trace, timeline, int(chosen[0]), is_large=chosen[0] in rows[:LARGEST]),
                place_bytes=bytes_ if lined else int(timeline.blocks["bytes"][chosen[0]]),
            )
        )
    return tuple(
        sorted((category for category in held_categories if category.bytes), key=lambda category: -category.bytes)
    )


def _most(codes: np.ndarray, size: np.ndarray) -> tuple[int, int]:
    """The code with most bytes, and these. ``MISSING`` where most bytes have none."""
    values, inverse = np.unique(codes, return_inverse=True)
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, inverse, size)
    index = int(np.argmax(sums))
    return int(values[index]), int(sums[index])


def _block_name(trace: Trace, timeline: MemoryTimeline, row: int, *, is_large: bool) -> str | None:
    """Of a block: its tensor or instruction, else its module, else, of a large one, the op that asked for it."""
    blocks = timeline.blocks
    texts = (timeline.text(int(blocks[name][row])) for name in ("name", "module"))
    op = asking_op(timeline.of(trace), int(blocks["op"][row])) if is_large else None
    return next(filter(None, texts), op)


def _holders(holders: Sequence[Holder]) -> Holders:
    return Holders(
        rows=tuple(holders[:MOST_HOLDERS]),
        left=max(0, len(holders) - MOST_HOLDERS),
        left_bytes=sum(holder.bytes for holder in holders[MOST_HOLDERS:]),
    )


def _rounded_peak(timeline: MemoryTimeline, fragmentation: Fragmentation | None) -> int | None:
    if fragmentation is None or not fragmentation.as_requested or timeline.space != "device":
        return None
    return int(in_use(timeline, as_requested=True).bytes.max(initial=0))


def _reserved(peak: PeakHolders, fragmentation: Fragmentation | None) -> Reserved | None:
    timeline = peak.timeline
    if timeline.reserved is None:
        return None
    most = int(timeline.reserved.bytes.max())
    excess = most - peak.bytes if fragmentation is None else fragmentation.excess_bytes
    pools = fragmentation if fragmentation is not None and fragmentation.pools else None
    return Reserved(
        peak_bytes=most,
        allocated_bytes=None if fragmentation is None else fragmentation.peak.allocated_bytes,
        as_requested=fragmentation is not None and fragmentation.as_requested,
        requested_bytes=None if fragmentation is None else fragmentation.peak.requested_bytes,
        excess_bytes=excess if excess >= 0 else None,
        split_bytes=None if pools is None else pools.inactive_split_bytes,
        largest_free_bytes=None if pools is None else pools.largest_free_bytes,
    )
