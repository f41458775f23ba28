"""One memory over time: the blocks it held, who owned them, and what lay around them.

The same for a device's memory as an allocator saw it (PyTorch, XLA), as the driver saw it, and for the memory that a
compiled program will need. The axis differs: nanoseconds, numbers of events, or instructions in the order they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.finding import Basis
from perfscope.analyzers.trace.columns import Column, Rows, Table, id_column, row_column, text_column

if TYPE_CHECKING:
    from perfscope.analyzers.trace import Trace

Int64 = npt.NDArray[np.int64]

Axis = Literal["ns", "event", "instruction"]
"""What positions count: the trace's clock, allocator events, or instructions of the schedule."""

Space = Literal["device", "host", "program"]


class KnownBy(IntEnum):
    """How the category of a block is known."""

    NOTHING = 0
    RECORDED = 1
    """The source says it."""
    ADDRESS = 2
    """It lies where the program's own list of tensors has one."""
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
    doc="One row a block, or the sum of several: from when it was handed out to when it was free again.",
    columns=(
        Column(name="start", dtype="int64", unit="axis", doc="handed out; the axis' first position if held before"),
        Column(name="end", dtype="int64", unit="axis", doc="free again (half open); behind the last if never"),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A place in the user's program. ``file`` as recorded; made fit to show where it is shown."""

    file: str
    line: int | None
    function: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A step function: ``bytes[i]`` holds from ``positions[i]`` up to the next one. Shapes (n,), int64, sorted."""

    positions: Int64
    bytes: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Blocks of one memory. Sums are exact: the curve is the blocks', and ``held_before`` stands apart."""

    space: Space
    label: str
    """Such as ``cuda:0``, ``host``, ``jit_train_step``."""
    ordinal: int | None
    known_from: str
    """Such as ``allocator events of torch.profiler``, ``CUDA memory snapshot``, ``XLA buffer assignment``."""
    axis: Axis
    basis: Basis
    """``measured`` for what an allocator did, ``modelled`` for what a program will need."""
    first: int
    last: int
    """First and last position of the recording; every block lies in [first, last + 1)."""
    blocks: Rows
    """Of table ``BLOCKS``, by start. Text columns are codes into the trace's strings."""
    lines: tuple[Line, ...] = ()
    unseen_bytes: int = 0
    """Held when the recording began and not among the blocks: known as a sum only."""
    reserved: Curve | None = None
    """What the allocator held from the driver; never below what its blocks take."""
    capacity_bytes: int | None = None
    """Memory of the device, where recorded."""
    out_of_memory: tuple[int, ...] = ()
    """Positions at which an allocation failed."""
    unmatched: int = 0
    """Events that belong to no block: a free of a block nobody saw, a second allocation of an address in use."""
    detail: bool = False
    """Recorded in `Trace.detail`: ``op``, ``frame`` and the texts of the blocks are rows and codes of that trace."""
    of_driver: bool = False
    """The blocks are what a framework's allocator took from the driver, and not what tensors lie in."""
    notes: tuple[str, ...] = ()
    """What its reader must know, one sentence each."""

    def of(self, trace: Trace) -> Trace:
        """The trace that the rows and texts of the blocks are of: ``trace``, or its detail recording."""
        return trace.detail if self.detail and trace.detail is not None else trace

    def live(self) -> Curve:
        """Bytes in use after each change, ``unseen_bytes`` included."""
        starts, ends, size = self.blocks["start"], self.blocks["end"], self.blocks["bytes"]
        gone = ~self.blocks["after"]
        positions = np.concatenate((starts, ends[gone]))
        change = np.concatenate((size, -size[gone]))
        places, inverse = np.unique(positions, return_inverse=True)
        total = np.zeros(len(places), np.int64)
        np.add.at(total, inverse, change)
        if not len(places) or places[0] > self.first:
            places, total = np.concatenate(([self.first], places)), np.concatenate(([0], total))
        return Curve(positions=places.astype(np.int64), bytes=np.cumsum(total) + self.unseen_bytes)

    def peak(self) -> tuple[int, int]:
        """``(position, bytes)`` of the first moment at which most bytes were in use.

        At one position what is freed goes before what is allocated, as in the allocator; a source whose events
        share positions and must not be netted gives each its own.
        """
        curve = self.live()
        at = int(np.argmax(curve.bytes))
        return int(curve.positions[at]), int(curve.bytes[at])

    def alive_at(self, position: int) -> npt.NDArray[np.intp]:
        """Rows of ``blocks`` that are held at ``position``, largest first."""
        rows = np.flatnonzero((self.blocks["start"] <= position) & (self.blocks["end"] > position))
        found: npt.NDArray[np.intp] = rows[np.argsort(-self.blocks["bytes"][rows], kind="stable")]
        return found
