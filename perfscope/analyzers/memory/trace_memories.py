"""Each memory of a trace in a bounded form: its peak with holders, reserved memory, headroom, and its picture.

Small enough to be sent from the process that read the trace to the one that writes a report.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.memory.fragmentation import Fragmentation, fragmentation_of, in_use
from perfscope.analyzers.memory.growth import growth_of, steps_until_full
from perfscope.analyzers.memory.holders import Holder, PeakHolders, memory_holders
from perfscope.analyzers.memory.phases import allocating_op
from perfscope.analyzers.memory.picture import MemoryPicture, memory_picture
from perfscope.analyzers.time import step_windows
from perfscope.model.memory import KnownBy, MemoryPhase, MemoryTimeline, RecordedMemory, SourceLine
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

MOST_PROGRAMS = 12
"""Maximum number of compiled programs per trace, highest peaks first: a few matter, dozens have a single op."""

MOST_HOLDERS = 20
"""Maximum number of modules and lines per peak: the others hold a percent or two each."""


LARGEST = 20
"""Number of blocks of a peak that are named by their op if they have no other name."""


class Holders(Struct, frozen=True, kw_only=True):
    """A peak by owner, most bytes first. ``rows`` and ``left_bytes`` sum to the peak exactly."""

    rows: tuple[Holder, ...]
    """At most 20, most bytes first."""
    left: int = 0
    """Number of owners that are not in ``rows``."""
    left_bytes: int = 0
    """Theirs. With the rows it sums to the peak, exactly."""


class HeldCategory(Struct, frozen=True, kw_only=True):
    """A category's part of a peak: its evidence, and the place that holds most of it."""

    category: MemoryCategory
    bytes: int
    blocks: int
    known_by: KnownBy
    """Evidence for most of its bytes."""
    place: SourceLine | None
    """Line that allocated most of it; None if unknown."""
    name: str | None
    """Op, module, tensor or instruction of its largest block, the first of these that is known."""
    place_bytes: int
    """Bytes of that line; without a line, of the largest block."""


class Reserved(Struct, frozen=True, kw_only=True):
    """Memory reserved by an allocator (or the program) from the driver. Bytes."""

    peak_bytes: int
    """Most that was held from the driver."""
    allocated_bytes: int | None
    """Allocated at the moment with most reserved memory; None for programs."""
    as_requested: bool
    """Whether ``allocated_bytes`` are as requested: rounding then counts as not allocated."""
    requested_bytes: int | None
    """Requested part of the allocated bytes; None if not recorded."""
    excess_bytes: int | None
    """Upper bound of the saving by better packing: the peak of reserved memory minus the peak of used memory. None if
    less was reserved than in use, because one of the two is incomplete.
    """
    split_bytes: int | None
    """Free bytes at the snapshot that cannot be returned; None without a snapshot."""
    largest_free_bytes: int | None

    @property
    def fragmentation(self) -> float | None:
        """Share of the peak of reserved memory that was not allocated at that moment; None if it is inconsistent."""
        if self.allocated_bytes is None or not self.peak_bytes or self.allocated_bytes > self.peak_bytes:
            return None
        return (self.peak_bytes - self.allocated_bytes) / self.peak_bytes


class Growing(Struct, frozen=True, kw_only=True):
    """Memory held at the ends of steps, if there are enough of them to distinguish growth from chance."""

    steps: int
    growing: bool
    bytes_per_step: float
    """Median slope after the first step."""
    steps_left: int | None
    """Until the device is full."""


class Memory(RecordedMemory, frozen=True, kw_only=True):
    """One memory of one trace."""

    rank: int | None
    peak_bytes: int
    rounded_peak_bytes: int | None
    """Peak in use in blocks of the allocator, which rounds sizes up (`torch.cuda.max_memory_allocated`), if
    ``peak_bytes`` has requested sizes; None if it has block sizes, or if the allocator does not round.
    """
    peak_position: int
    phase: MemoryPhase
    """At the peak."""
    step: int | None
    op: str | None
    """Op or instruction that allocated the block that made the peak."""
    line: SourceLine | None
    by_category: tuple[HeldCategory, ...]
    """Most bytes first; with unseen_bytes it sums to the peak, exactly."""
    by_module: Holders
    by_line: Holders
    reserved: Reserved | None
    capacity_bytes: int | None
    """Memory of the device."""
    out_of_memory: int
    """Number of failed allocations."""
    failed_bytes: int | None
    """Largest failed request, if recorded."""
    growth: Growing | None
    """null: too few steps to tell growth from chance."""
    picture: MemoryPicture | None

    @property
    def taken_bytes(self) -> int:
        """Peak of the bytes taken from the device: reserved bytes if known, else bytes in use."""
        return max(self.peak_bytes, self.reserved.peak_bytes if self.reserved is not None else 0)

    @property
    def headroom_bytes(self) -> int | None:
        """Free bytes of the device at its fullest; None if its size was not recorded."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.taken_bytes


class TraceMemories(Struct, frozen=True, kw_only=True):
    """The memories of one trace, highest peak first, and the number of further programs."""

    memories: tuple[Memory, ...]
    left: int


def trace_memories(trace: Trace) -> TraceMemories:
    """Return the memories of one trace: a fact with everything that the section reads."""
    # a device without memory in use is reported too: its reserved memory and failed allocations
    known = (peak for peak in trace.fact(memory_holders) if peak.bytes or peak.timeline.space != "program")
    peaks = sorted(known, key=lambda peak: -peak.bytes)
    of_programs = [peak for peak in peaks if peak.timeline.space == "program"]
    # there are only a few devices and hosts
    chosen = [*(peak for peak in peaks if peak.timeline.space != "program"), *of_programs[:MOST_PROGRAMS]]
    memories = sorted((_memory(trace, peak) for peak in chosen), key=lambda memory: -memory.peak_bytes)
    return TraceMemories(memories=tuple(memories), left=len(peaks) - len(chosen))


def _memory(trace: Trace, peak: PeakHolders) -> Memory:
    timeline = peak.timeline
    fragmentation, growth = fragmentation_of(trace, timeline), growth_of(trace, timeline)
    failures = () if fragmentation is None else fragmentation.failures
    return Memory(
        **{name: getattr(timeline, name) for name in RecordedMemory.__struct_fields__},
        rank=trace.source.rank,
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
        reserved=_reserved(peak, fragmentation),
        # memory from before the recording takes an unknown part of the device
        capacity_bytes=None if timeline.sums_only else timeline.capacity_bytes,
        out_of_memory=len(timeline.out_of_memory),
        failed_bytes=max((failure.failed_bytes for failure in failures if failure.failed_bytes), default=None),
        growth=None
        if growth is None or not growth.by_trend
        else Growing(
            steps=growth.steps,
            growing=growth.growing,
            bytes_per_step=growth.slope_bytes,
            steps_left=steps_until_full(growth.timeline, growth.slope_bytes) if growth.growing else None,
        ),
        picture=memory_picture(trace, timeline) if timeline.first != timeline.last else None,
    )


def _step(trace: Trace, timeline: MemoryTimeline, peak: PeakHolders) -> int | None:
    """Return the step number of the peak: of its block, else by the clock."""
    if peak.step is not None or timeline.axis != "ns" or timeline.space == "program":
        return peak.step
    windows = timeline.of(trace).fact(step_windows)
    inside = np.flatnonzero((windows.starts <= peak.position) & (peak.position < windows.ends))
    return int(windows.numbers[inside[0]]) if len(inside) else None


def _maker(trace: Trace, peak: PeakHolders) -> str | None:
    """Return the name of the block that made the peak: the instruction of a program."""
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
    """Return the code with most bytes, and these bytes. ``MISSING`` if most bytes have none."""
    values, inverse = np.unique(codes, return_inverse=True)
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, inverse, size)
    index = int(np.argmax(sums))
    return int(values[index]), int(sums[index])


def _block_name(trace: Trace, timeline: MemoryTimeline, row: int, *, is_large: bool) -> str | None:
    """Return the name of a block: its tensor or instruction, else its module, else (if large) its allocating op."""
    blocks = timeline.blocks
    texts = (timeline.text(int(blocks[name][row])) for name in ("name", "module"))
    op = allocating_op(timeline.of(trace), int(blocks["op"][row])) if is_large else None
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
