"""The tables of memory: what an allocator did, what it held at one moment, and what the program says of it."""

from __future__ import annotations

from enum import IntEnum

from perfscope.analyzers.trace.columns import Column, Table, id_column, row_column, text_column


class MemoryAction(IntEnum):
    """What an allocator event is. Blocks are what tensors lie in; segments are what the allocator holds them in."""

    ALLOCATE = 0
    FREE = 1
    RESERVE = 2
    """A segment came from the driver."""
    RELEASE = 3
    """A segment went back to it."""
    FREE_REQUESTED = 4
    """The program let go; another stream may still use the block, so it is not free yet."""
    OUT_OF_MEMORY = 5
    HELD_BEFORE = 6
    """Allocated before the recording began, and known from the first event on."""


class MemoryCategory(IntEnum):
    """What a block is for. The words are those of torch's memory profiler and of the issue trackers."""

    UNKNOWN = 0
    PARAMETER = 1
    OPTIMIZER_STATE = 2
    GRADIENT = 3
    ACTIVATION = 4
    """Made in the forward pass and alive when its backward begins."""
    INPUT = 5
    TEMPORARY = 6
    COMMUNICATION = 7
    WORKSPACE = 8
    """Scratch of a library (cuBLAS, cuDNN, NCCL)."""
    AUTOGRAD_DETAIL = 9
    OUTPUT = 10
    CONSTANT = 11
    CODE = 12
    """Compiled programs that lie in device memory."""


class HeldState(IntEnum):
    """What a block of a segment is at the moment of a snapshot."""

    IN_USE = 0
    AWAITING_FREE = 1
    """Let go by the program, still used by another stream."""
    FREE = 2


def _place() -> tuple[Column, Column]:
    return (
        Column(name="on_device", dtype="bool", unit="flag", doc="device memory, else host memory"),
        Column(name="ordinal", dtype="int64", unit="id", doc="number of the device", nullable=True),
    )


_FRAME = row_column("frame", "frames", "innermost frame of the stack that asked for it")
_STREAM = id_column("stream", "stream it was allocated on")
_POOL = text_column("pool", "memory pool other than the default one", nullable=True)
_REQUESTED = Column(
    name="requested_bytes", dtype="int64", unit="B", doc="what was asked for, before rounding", nullable=True
)


def _category(doc: str) -> Column:
    return Column(name="category", dtype="uint8", unit="MemoryCategory", doc=doc, default=int(MemoryCategory.UNKNOWN))


FRAMES = Table(
    name="frames",
    doc="One row a frame of a recorded stack; stacks share the rows of their callers.",
    columns=(
        text_column("file", "file as recorded", nullable=True),
        Column(name="line", dtype="int32", unit="line", doc="line in it", nullable=True),
        text_column("name", "function"),
        row_column("parent", "frames", "its caller"),
    ),
)

MEMORY = Table(
    name="memory",
    doc="One row an allocator event, in the order they happened.",
    columns=(
        Column(
            name="time_ns",
            dtype="int64",
            unit="ns",
            doc="when; the number of the event where the source has an order and no times (`Source.events_only`)",
        ),
        row_column("thread", "threads", "where"),
        row_column("op", "slices", "innermost host span around it"),
        *_place(),
        Column(name="address", dtype="uint64", unit="address", doc="address of the block, or a number that names it"),
        Column(name="bytes", dtype="int64", unit="B", doc="allocated or reserved; negative: freed or released"),
        Column(name="allocated_bytes", dtype="int64", unit="B", doc="allocator total after it", nullable=True),
        Column(name="reserved_bytes", dtype="int64", unit="B", doc="allocator reserve after it", nullable=True),
        Column(
            name="stack_bytes",
            dtype="int64",
            unit="B",
            doc="in use beside the allocator total, by programs that run (XLA: `bytes_reserved`)",
            nullable=True,
        ),
        Column(
            name="peak_bytes",
            dtype="int64",
            unit="B",
            doc="most in use so far, as the allocator itself says, also before the recording",
            nullable=True,
        ),
        Column(
            name="fragmentation",
            dtype="float64",
            unit="share",
            doc="of the free memory, what is not in the largest free piece, as the allocator itself says",
            nullable=True,
        ),
        Column(
            name="action",
            dtype="uint8",
            unit="MemoryAction",
            doc="0 allocate, 1 free, 2 reserve, 3 release, 4 free requested, 5 out of memory, 6 held before",
        ),
        _REQUESTED,
        _category("what the source says it is for; 0: it does not say"),
        _STREAM,
        _POOL,
        _FRAME,
    ),
)

SEGMENTS = Table(
    name="segments",
    doc="One row a segment that the allocator held at the moment of the snapshot.",
    columns=(
        *_place(),
        Column(name="address", dtype="uint64", unit="address", doc="where it begins"),
        Column(name="bytes", dtype="int64", unit="B", doc="its size: what the driver counts as used"),
        Column(name="allocated_bytes", dtype="int64", unit="B", doc="of its blocks in use"),
        Column(name="active_bytes", dtype="int64", unit="B", doc="of its blocks in use or awaiting free"),
        _REQUESTED,
        _STREAM,
        _POOL,
        text_column("kind", "small or large: which sizes it serves", nullable=True),
        Column(name="expandable", dtype="bool", unit="flag", doc="it can grow in place"),
        _FRAME,
    ),
)

HELD = Table(
    name="held",
    doc="One row a block, or a piece of free space, at the moment of the snapshot.",
    columns=(
        *_place(),
        Column(name="address", dtype="uint64", unit="address", doc="address; 0 where the source has none"),
        Column(name="bytes", dtype="int64", unit="B", doc="its size"),
        _REQUESTED,
        Column(name="count", dtype="int64", unit="count", doc="blocks that this row sums up"),
        Column(name="state", dtype="uint8", unit="HeldState", doc="0 in use, 1 awaiting free, 2 free"),
        row_column("segment", "segments", "the segment it lies in"),
        text_column("kind", "buffer, executable ... as recorded", nullable=True),
        _category("what the source says it is for; 0: it does not say"),
        _FRAME,
    ),
)

TENSORS = Table(
    name="tensors",
    doc="One row a storage that the program held when the recording began, as its framework names it.",
    columns=(
        text_column("name", "such as blocks.0.mlp.weight, or the optimizer's exp_avg of it"),
        text_column("module", "qualified name of the module that owns it", nullable=True),
        _category("what it is for"),
        *_place(),
        Column(name="address", dtype="uint64", unit="address", doc="address of its storage; 0: several, summed up"),
        Column(name="bytes", dtype="int64", unit="B", doc="of its storage"),
        Column(name="count", dtype="int64", unit="count", doc="storages that this row sums up", default=1),
        Column(
            name="freed_ns",
            dtype="int64",
            unit="ns",
            doc="when it was freed, on the trace's clock; missing: not within the recording",
            nullable=True,
        ),
    ),
)
