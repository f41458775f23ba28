"""One memory over time: its blocks, their owners, and the memory around them.

The same for a device's memory as an allocator saw it (PyTorch, XLA), as the driver saw it, and for the memory that a
compiled program will need. The axis differs: nanoseconds, numbers of events, or instructions in the order they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.model.finding import Basis
from perfscope.model.live_bytes import NEVER, Curve, Int64, curve
from perfscope.model.trace import MISSING
from perfscope.model.trace.columns import Column, Rows, Table, id_column, row_column, text_column

if TYPE_CHECKING:
    from perfscope.model.trace import Trace


Axis = Literal["ns", "event", "instruction"]
"""Unit of positions: the trace's clock, allocator events, or instructions of the schedule."""

Space = Literal["device", "host", "program"]


class KnownBy(IntEnum):
    """How the category of a block is known."""

    NOTHING = 0
    RECORDED = 1
    """Recorded by the source."""
    ADDRESS = 2
    """Its address is in the program's own list of tensors."""
    PHASE = 3
    """From the phases of the step it was made and let go in."""
    STACK = 4
    """From the functions that asked for it."""
    OP = 5
    """From the op that asked for it."""
    SCHEDULE = 6
    """From the compiled program: who reads it and when."""


BLOCKS = Table(
    name="blocks",
    doc="One row per block, or the sum of several: from when it was handed out to when it was free again.",
    columns=(
        Column(name="start", dtype="int64", unit="axis", doc="handed out; the axis' first position if held before"),
        Column(name="end", dtype="int64", unit="axis", doc="free again (half open); after the last if never"),
        Column(name="before", dtype="bool", unit="flag", doc="held before the recording began"),
        Column(name="after", dtype="bool", unit="flag", doc="still held when it ended"),
        Column(name="bytes", dtype="int64", unit="B", doc="as handed out, rounding included"),
        Column(name="requested_bytes", dtype="int64", unit="B", doc="as asked for", nullable=True),
        Column(name="address", dtype="uint64", unit="address", doc="address, or number of the buffer"),
        id_column("stream", "stream it was allocated on"),
        Column(name="category", dtype="uint8", unit="MemoryCategory", doc="what it is for"),
        Column(name="known_by", dtype="uint8", unit="KnownBy", doc="how the category is known"),
        row_column("op", "slices", "host op that asked for it"),
        row_column("frame", "frames", "innermost frame of the stack that asked for it"),
        text_column("name", "tensor, or instruction of a program, where known", nullable=True),
        text_column("module", "qualified module that asked for it, or scope of the program", nullable=True),
        Column(name="line", dtype="int32", unit="index", doc="into `MemoryTimeline.lines`", nullable=True),
        Column(name="phase", dtype="uint8", unit="MemoryPhase", doc="of the step it was made in", default=0),
        Column(name="step", dtype="int64", unit="count", doc="number of the step it was made in", nullable=True),
        Column(name="count", dtype="int64", unit="count", doc="blocks that this row sums up", default=1),
    ),
)


class MemoryPhase(IntEnum):
    """The part of a training step."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    RECOMPUTE = 4
    """Forward run again within the backward pass."""


class SourceLine(Struct, frozen=True, kw_only=True):
    """A place in the user's program. ``file`` as recorded; sanitized where it is shown."""

    file: str
    line: int | None
    function: str | None = None


class RecordedMemory(Struct, frozen=True, kw_only=True):
    """One memory and its recording."""

    space: Space
    """program: what a compiled program will need."""
    label: str
    """Such as cuda:0, host or jit_train_step."""
    known_from: str
    """Such as CUDA memory snapshot."""
    axis: Axis
    """Unit of positions: ns, events or instructions."""
    basis: Basis
    """measured: events of an allocator; modelled: needs of a program."""
    first: int
    last: int
    """First and last position; the same: one moment was recorded."""
    unseen_bytes: int = 0
    """Bytes held when the recording began, with unknown owner; a part of the peak without category."""
    unmatched: int = 0
    """Events without a block: a free of an unknown block, a second allocation of an address in use."""
    of_driver: bool = False
    """Blocks are what an allocator took from the driver, and not what tensors lie in."""
    notes: tuple[str, ...] = ()
    """Notes for the reader, one sentence each."""


class MemoryTimeline(RecordedMemory, frozen=True, kw_only=True):
    """Blocks of one memory, in [first, last + 1). Sums are exact: the curve is that of the blocks."""

    ordinal: int | None
    blocks: Rows
    """Rows of table ``BLOCKS``, by start."""
    texts: Sequence[str] = ()
    """Texts by code, for the blocks' text columns."""
    lines: tuple[SourceLine, ...] = ()
    reserved: Curve | None = None
    """Memory that the allocator held from the driver; at least the memory of its blocks."""
    capacity_bytes: int | None = None
    """Memory of the device, where recorded."""
    out_of_memory: tuple[int, ...] = ()
    """Positions at which an allocation failed."""
    detail: bool = False
    """Recorded in `Trace.detail`: ``op`` and ``frame`` of the blocks are rows of that trace."""
    sums_only: bool = False
    """Whether the events have neither blocks nor totals: sums over time are exact, but owners and the memory from
    before the recording are unknown."""

    def of(self, trace: Trace) -> Trace:
        """The trace that ``op`` and ``frame`` of the blocks are rows of: ``trace``, or its detail recording."""
        return trace.detail if self.detail and trace.detail is not None else trace

    def text(self, code: int) -> str:
        """The text of a block's code; ``''`` for ``MISSING``."""
        return "" if code == MISSING else self.texts[code]

    def live(self) -> Curve:
        """Bytes in use after each change, ``unseen_bytes`` included."""
        blocks = self.blocks
        live = curve(blocks["start"], np.where(blocks["after"], NEVER, blocks["end"]), blocks["bytes"])
        positions, size = live.positions, live.bytes
        if not len(positions) or positions[0] > self.first:
            positions, size = np.concatenate(([self.first], positions)), np.concatenate(([0], size))
        return Curve(positions=positions, bytes=size + self.unseen_bytes)

    def peak(self) -> tuple[int, int]:
        """``(position, bytes)`` of the first moment at which most bytes were in use.

        At one position frees go before allocations, as in the allocator; a source whose events
        share positions and must not be netted gives each its own.
        """
        return self.live().peak()

    def alive_at(self, position: int) -> npt.NDArray[np.intp]:
        """Rows of ``blocks`` that are held at ``position``, largest first."""
        rows = np.flatnonzero((self.blocks["start"] <= position) & (self.blocks["end"] > position))
        found: npt.NDArray[np.intp] = rows[np.argsort(-self.blocks["bytes"][rows], kind="stable")]
        return found


# From allocator events to blocks: every allocation is paired with the free that ends it. Vectorised.
#
# Within the events of one address, in the order they happened, an allocation followed by a free is a block. A free
# that comes first at its address ends a block that was held before the recording began. An allocation with no free
# after it is still held at the end. Other events are counted, not repaired by a guess: a free after a free (the
# allocation between them is missing), and an allocation after an allocation (the free between them is missing: the
# earlier block ends where the later one begins, because no address is handed out twice).


class Pairs(Struct, frozen=True, kw_only=True):
    """Blocks as indices into the events they were paired from. Shapes (blocks,), in order of ``made``.

    ``MISSING`` in ``made``: held before the recording, and ``freed`` is then the event that shows it.
    ``MISSING`` in ``freed``: never freed.
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
    """Positions for events in the order they happened: their times, each at least 1 after the one before.

    Allocators record in microseconds, or several events in one nanosecond; a block freed and one made in the same
    instant must not cancel out, or a peak between them is lost. Shape (n,) in and out.
    """
    steps = np.arange(len(times), dtype=np.int64)
    return np.asarray(np.maximum.accumulate(times - steps) + steps, np.int64)


# Counters of an allocator that a run read before its first pass and after its last one.


_IN_USE = ("allocated_bytes.all.current", "bytes_in_use")
"""PyTorch's name (``torch.cuda.memory_stats()``) and XLA's (``device.memory_stats()``), as in all of these."""
_PEAK = ("allocated_bytes.all.peak", "peak_bytes_in_use")
_LIMIT = ("bytes_limit",)


class AllocatorCounters(Struct, frozen=True, kw_only=True):
    """Counters of the process' device. Bytes, and numbers of events since the process began."""

    before: Mapping[str, int]
    after: Mapping[str, int]
    steps: int | None
    """Steps between the two readings."""

    @property
    def grown_bytes(self) -> int | None:
        """Bytes in use at the end minus bytes in use at the beginning; None if not counted."""
        first, last = _first_counter(self.before, _IN_USE), _first_counter(self.after, _IN_USE)
        return None if first is None or last is None else last - first

    @property
    def peak_bytes(self) -> int | None:
        """Most that was ever in use in this process."""
        return _first_counter(self.after or self.before, _PEAK)

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Most that the allocator ever held from the driver."""
        return _first_counter(self.after or self.before, ("reserved_bytes.all.peak",))

    @property
    def limit_bytes(self) -> int | None:
        """Largest memory that the allocator may take, if it reports one (XLA)."""
        return _first_counter(self.after or self.before, _LIMIT)

    @property
    def retries(self) -> int:
        """Times the driver had no memory left and the allocator gave its cache back (``num_alloc_retries``)."""
        return (self.after or self.before).get("num_alloc_retries", 0)

    @property
    def retries_in_window(self) -> int | None:
        """Retries between the two readings; None with only one reading."""
        name = "num_alloc_retries"
        return self.after[name] - self.before[name] if name in self.after and name in self.before else None

    @property
    def failures(self) -> int:
        """Allocations that failed for good (``num_ooms``)."""
        return (self.after or self.before).get("num_ooms", 0)


def _first_counter(counters: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    return next((counters[name] for name in names if name in counters), None)


# Facts on torch's allocators of device memory, for code that records them and code that judges them.


ALLOCATION_ROUNDING = 512
"""Bytes: allocated sizes are multiples of it (``kMinBlockSize`` in ``c10/core/AllocatorConfig.h``)."""
