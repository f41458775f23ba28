"""Every table of the model. Rules and pages can use only tables and columns that are declared here."""

from __future__ import annotations

from enum import IntEnum

from perfscope.model.trace.columns import Column, Table, end_column, id_column, row_column, start_column, text_column
from perfscope.model.trace.counted_tables import CORES, HELD_NAMES, RUN_MEMORY, RUN_STEPS, SIDE_WORK, STORAGE

# The tables of memory: events of an allocator, its memory at one moment, and the memory of the program by its own data.


class MemoryAction(IntEnum):
    """Kind of an allocator event. Tensors are in blocks; the allocator holds blocks in segments."""

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
    """Use of a block. The words are those of torch's memory profiler and of the issue trackers."""

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
    """Compiled programs in device memory."""
    KV_CACHE = 13
    """Keys and values of earlier tokens, kept for the next call of a model that generates text."""


class HeldState(IntEnum):
    """State of a block of a segment at the moment of a snapshot."""

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
    name="requested_bytes", dtype="int64", unit="B", doc="requested size, before rounding", nullable=True
)


def _category(doc: str) -> Column:
    return Column(name="category", dtype="uint8", unit="MemoryCategory", doc=doc, default=int(MemoryCategory.UNKNOWN))


FRAMES = Table(
    name="frames",
    doc="One row per frame of a recorded stack, of an allocation or a sample; stacks share the rows of their callers.",
    columns=(
        text_column("file", "file as recorded", nullable=True),
        Column(name="line", dtype="int32", unit="line", doc="line in it", nullable=True),
        text_column("name", "function"),
        row_column("parent", "frames", "its caller"),
    ),
)

MEMORY = Table(
    name="memory",
    doc="One row per allocator event, in the order they happened.",
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
            doc="in use by running programs, in addition to the allocator total (XLA: `bytes_reserved`)",
            nullable=True,
        ),
        Column(
            name="limit_bytes",
            dtype="int64",
            unit="B",
            doc="what the allocator may take of the device, by its own totals (XLA: in use, stacks and free)",
            nullable=True,
        ),
        Column(
            name="peak_bytes",
            dtype="int64",
            unit="B",
            doc="most in use so far by the allocator's own count, also before the recording",
            nullable=True,
        ),
        Column(
            name="fragmentation",
            dtype="float64",
            unit="share",
            doc="share of the free memory outside of the largest free piece, by the allocator's own count",
            nullable=True,
        ),
        Column(
            name="action",
            dtype="uint8",
            unit="MemoryAction",
            doc="0 allocate, 1 free, 2 reserve, 3 release, 4 free requested, 5 out of memory, 6 held before",
        ),
        _REQUESTED,
        _category("use according to the source; 0: unknown"),
        _STREAM,
        _POOL,
        _FRAME,
    ),
)

SEGMENTS = Table(
    name="segments",
    doc="One row per segment that the allocator held at the moment of the snapshot.",
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
    doc="One row per block, or a piece of free space, at the moment of the snapshot.",
    columns=(
        *_place(),
        Column(name="address", dtype="uint64", unit="address", doc="address; 0 where the source has none"),
        Column(name="bytes", dtype="int64", unit="B", doc="its size"),
        _REQUESTED,
        Column(name="count", dtype="int64", unit="count", doc="blocks that this row sums up"),
        Column(name="state", dtype="uint8", unit="HeldState", doc="0 in use, 1 awaiting free, 2 free"),
        row_column("segment", "segments", "the segment it lies in"),
        text_column("kind", "buffer, executable ... as recorded", nullable=True),
        _category("use according to the source; 0: unknown"),
        _FRAME,
    ),
)

TENSORS = Table(
    name="tensors",
    doc="One row per storage that the program held when the recording began, as its framework names it.",
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


class SliceKind(IntEnum):
    """Kind of a host slice."""

    OP = 0
    ANNOTATION = 1
    PYTHON = 2
    OVERHEAD = 3
    OTHER = 4


class CallKind(IntEnum):
    """Kind of a runtime or driver call."""

    KERNEL = 0
    GRAPH = 1
    COPY = 2
    MEMSET = 3
    SYNC = 4
    MEMORY = 5
    OTHER = 6


class CopyKind(IntEnum):
    """Direction of a copy; a memset has none."""

    HOST_TO_DEVICE = 0
    DEVICE_TO_HOST = 1
    DEVICE_TO_DEVICE = 2
    PEER_TO_PEER = 3
    HOST_TO_HOST = 4
    MEMSET = 5
    UNKNOWN = 6


class HostMemory(IntEnum):
    """The host side of a copy."""

    NONE = 0
    PAGEABLE = 1
    PINNED = 2
    UNKNOWN = 3


_DEVICE = row_column("device", "devices", "the device it ran on", nullable=False)
_TABLES_STREAM = Column(name="stream", dtype="int64", unit="id", doc="stream or queue on that device")
_CORRELATION = id_column("correlation", "id that joins a runtime call with the work it launched")
_EXTERNAL = id_column("external_id", "id that joins device work and calls with the host op")

THREADS = Table(
    name="threads",
    doc="One row per host thread.",
    columns=(
        text_column("process", "process id or name as recorded"),
        text_column("thread", "thread id or name as recorded"),
    ),
)

DEVICES = Table(
    name="devices",
    doc="One row per accelerator that did work in the trace.",
    columns=(
        Column(name="ordinal", dtype="int64", unit="id", doc="number of the device in its process"),
        text_column("name", "product name", nullable=True),
        Column(name="cores", dtype="int64", unit="count", doc="SMs or CUs", nullable=True),
        Column(name="memory_bytes", dtype="int64", unit="B", doc="memory of the device", nullable=True),
    ),
)

SLICES = Table(
    name="slices",
    doc="One row per host span: framework op, annotation, Python function, profiler overhead. "
    "Sorted by thread, start, then longest first, so a parent comes before its children.",
    columns=(
        start_column("the span"),
        end_column("the span"),
        text_column("name", "as recorded"),
        Column(name="kind", dtype="uint8", unit="SliceKind", doc="0 op, 1 annotation, 2 python, 3 overhead, 4 other"),
        row_column("thread", "threads", "where it ran", nullable=False),
        row_column("parent", "slices", "innermost span of the same thread that encloses it"),
        _EXTERNAL,
        id_column("sequence", "autograd sequence number"),
        id_column("forward_thread", "autograd: 0 in the forward pass, the forward's thread id in the backward"),
        text_column("shapes", "input shapes, JSON text", nullable=True),
        text_column("dtypes", "input types, JSON text", nullable=True),
        text_column("strides", "input strides, JSON text", nullable=True),
        text_column("values", "numbers, truth values and lists of them among the inputs, JSON text", nullable=True),
        Column(
            name="call_line",
            dtype="int32",
            unit="line",
            doc="line of the caller's file that ran, of a Python span",
            nullable=True,
        ),
    ),
)

CALLS = Table(
    name="calls",
    doc="One row per runtime or driver call on the host (CUDA, HIP, MTIA). `launches` and `syncs` are its parts.",
    columns=(
        start_column("the call"),
        end_column("the call"),
        text_column("name", "as recorded"),
        Column(
            name="kind",
            dtype="uint8",
            unit="CallKind",
            doc="0 kernel, 1 graph, 2 copy, 3 memset, 4 sync, 5 memory, 6 other",
        ),
        row_column("thread", "threads", "where it ran", nullable=False),
        row_column("parent", "slices", "innermost host span that encloses it"),
        _CORRELATION,
        _EXTERNAL,
    ),
)

KERNELS = Table(
    name="kernels",
    doc="One row per kernel on a device.",
    columns=(
        start_column("the kernel"),
        end_column("the kernel"),
        text_column("name", "as recorded"),
        _DEVICE,
        _TABLES_STREAM,
        row_column("call", "calls", "the call that launched it (a graph launch for graph kernels)"),
        row_column("op", "slices", "the host op that launched it"),
        Column(name="communication", dtype="bool", unit="flag", doc="a collective or point-to-point kernel"),
        _CORRELATION,
        _EXTERNAL,
        Column(name="blocks", dtype="int64", unit="count", doc="thread blocks of the grid", nullable=True),
        Column(name="threads_per_block", dtype="int32", unit="count", doc="threads of a block", nullable=True),
        Column(name="occupancy", dtype="float32", unit="percent", doc="estimated by the profiler", nullable=True),
    ),
)

COPIES = Table(
    name="copies",
    doc="One row per copy or memset on a device.",
    columns=(
        start_column("the copy"),
        end_column("the copy"),
        text_column("name", "as recorded"),
        _DEVICE,
        _TABLES_STREAM,
        row_column("call", "calls", "the call that launched it"),
        row_column("op", "slices", "the host op that launched it"),
        _CORRELATION,
        _EXTERNAL,
        Column(
            name="kind", dtype="uint8", unit="CopyKind", doc="0 HtoD, 1 DtoH, 2 DtoD, 3 PtoP, 4 HtoH, 5 memset, 6 ?"
        ),
        Column(name="host_memory", dtype="uint8", unit="HostMemory", doc="0 none, 1 pageable, 2 pinned, 3 unknown"),
        Column(name="bytes", dtype="int64", unit="B", doc="bytes moved or set", nullable=True),
    ),
)

COLLECTIVES = Table(
    name="collectives",
    doc="One row per collective as one rank saw it: a communication kernel, or a host span (gloo).",
    columns=(
        start_column("the collective"),
        end_column("the collective"),
        text_column("name", "operation, such as all_reduce"),
        row_column("kernel", "kernels", "the kernel, for a collective on a device"),
        row_column("slice", "slices", "the host span, for a collective on the host"),
        text_column("group", "process group name", nullable=True),
        text_column("description", "what the program calls the group", nullable=True),
        Column(name="group_size", dtype="int32", unit="count", doc="ranks in the group", nullable=True),
        text_column("ranks", "ranks of the group, JSON text", nullable=True),
        Column(name="elements_in", dtype="int64", unit="count", doc="elements of the input message", nullable=True),
        Column(name="elements_out", dtype="int64", unit="count", doc="elements of the output message", nullable=True),
        text_column("dtype", "element type", nullable=True),
        id_column("sequence", "number of the collective in its group"),
        id_column("peer", "rank on the other side of a send or receive"),
    ),
)

SYNC_RECORDS = Table(
    name="sync_records",
    doc="One row per synchronisation as the device driver recorded it (only with sync events enabled).",
    columns=(
        start_column("the wait"),
        end_column("the wait"),
        text_column("name", "Stream Sync, Event Sync, Context Sync or Stream Wait Event"),
        _DEVICE,
        _TABLES_STREAM,
        row_column("call", "calls", "the host call"),
        _CORRELATION,
    ),
)

HLO_OPS = Table(
    name="hlo_ops",
    doc="One row per run of an instruction of a compiled XLA program: device work with its instruction (several "
    "rows, if one instruction launches several kernels), an instruction around others (a loop), or an op of "
    "XLA's CPU backend, whose devices are threads of the host.",
    columns=(
        start_column("the instruction"),
        end_column("the instruction, work in a thread pool included,"),
        text_column("name", "instruction, as the module names it"),
        text_column("module", "module, as the source names it", nullable=True),
        id_column("program_id", "number of the compiled program in its process (unsigned ones as two's complement)"),
        id_column("run_id", "number of the execution of the program"),
        Column(name="ordinal", dtype="int64", unit="id", doc="number of the device", nullable=True),
        Column(
            name="place",
            dtype="int64",
            unit="id",
            doc="the device's number in the program's groups (replica x partitions + partition), where recorded",
            nullable=True,
        ),
        Column(
            name="launch_end_ns",
            dtype="int64",
            unit="ns",
            doc="CPU backend: when the call that began it returned; the work may go on in a thread pool",
            nullable=True,
        ),
        Column(name="encloses", dtype="bool", unit="flag", doc="other instructions ran inside it (a loop, a call)"),
        Column(
            name="asynchronous",
            dtype="bool",
            unit="flag",
            doc="TPU: one instruction began it and another awaits it, in parallel with the core's own work: not a run",
            default=0,
        ),
        row_column("kernel", "kernels", "its kernel on a device"),
        row_column("copy", "copies", "its copy on a device"),
        row_column("slice", "slices", "its op on the host; lasts as long as the call that began it"),
    ),
)

STEPS = Table(
    name="steps",
    doc="One row per step of the program's loop.",
    columns=(
        start_column("the step"),
        end_column("the step"),
        text_column("name", "as recorded"),
        Column(name="number", dtype="int64", unit="count", doc="number the program gave it"),
        Column(
            name="device_start_ns",
            dtype="int64",
            unit="ns",
            doc="begin of its first mark on a device, as the profiler drew it",
            nullable=True,
        ),
        Column(name="device_end_ns", dtype="int64", unit="ns", doc="end of its last mark on a device", nullable=True),
    ),
)

COUNTERS = Table(
    name="counters",
    doc="One row per sample of a counter.",
    columns=(
        Column(name="time_ns", dtype="int64", unit="ns", doc="when"),
        text_column("name", "counter and its series"),
        Column(name="value", dtype="float64", unit="as recorded", doc="the sample"),
    ),
)

KERNEL_COUNTERS = Table(
    name="kernel_counters",
    doc="One row per hardware counter of a range: a kernel, or a part of the program. Ranges have no times: to count, "
    "the profiler runs kernels several times, and the times it writes for ranges are made up.",
    columns=(
        Column(name="number", dtype="int64", unit="count", doc="of the range: by device, in the order they ran"),
        text_column("name", "kernel or range, as recorded; `__missing__`: the profiler did not know the kernel's name"),
        Column(name="ordinal", dtype="int64", unit="id", doc="number of the device"),
        row_column("call", "calls", "the call that launched the kernel; missing: not joined"),
        row_column("op", "slices", "the host op that launched it"),
        text_column("basis", "how the call is known, or why it is not"),
        text_column("metric", "name of the counter; missing: the range has none", nullable=True),
        Column(
            name="value",
            dtype="float64",
            unit="as recorded",
            doc="what was counted; missing: no number of 64 bits was recorded",
            nullable=True,
        ),
    ),
)

SAMPLES = Table(
    name="samples",
    doc="One row per sampled stack (Python or native) of a thread of the program or of one of its worker processes, in "
    "order of time. The thread of the steps has one at each sampling, the others where they had worked since the one "
    "before; native stacks are sampled only while their thread runs.",
    columns=(
        Column(name="time_ns", dtype="int64", unit="ns", doc="when"),
        Column(name="lasts_ns", dtype="int64", unit="ns", doc="time since the previous sampling, which it represents"),
        Column(
            name="cpu_ns",
            dtype="int64",
            unit="ns",
            doc="processor time of the thread since its sample before; far below `lasts_ns` it slept or waited",
            nullable=True,
        ),
        Column(
            name="delay_ns",
            dtype="int64",
            unit="ns",
            doc="by how much later than due it was taken: the sampler waited for the interpreter's lock or a processor",
        ),
        row_column("thread", "threads", "the thread", nullable=False),
        row_column("frame", "frames", "innermost frame; one without a file is what the frame above it calls"),
        Column(name="worker", dtype="bool", unit="flag", doc="of a worker process, else of the program itself"),
        Column(
            name="step",
            dtype="int64",
            unit="count",
            doc="number of the step it was taken in, also of steps that were not traced; missing: between steps",
            nullable=True,
        ),
        Column(name="step_ns", dtype="int64", unit="ns", doc="duration of that step", nullable=True),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        CALLS,
        COLLECTIVES,
        COPIES,
        CORES,
        COUNTERS,
        DEVICES,
        FRAMES,
        HELD,
        HELD_NAMES,
        HLO_OPS,
        KERNELS,
        KERNEL_COUNTERS,
        MEMORY,
        RUN_MEMORY,
        RUN_STEPS,
        SAMPLES,
        SEGMENTS,
        SIDE_WORK,
        SLICES,
        STEPS,
        STORAGE,
        SYNC_RECORDS,
        TENSORS,
        THREADS,
    )
}
