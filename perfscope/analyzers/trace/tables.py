"""Every table of the model. What is not declared here does not exist for a rule or a page."""

from __future__ import annotations

from enum import IntEnum

from perfscope.analyzers.trace.columns import (
    Column,
    Table,
    end_column,
    id_column,
    row_column,
    start_column,
    text_column,
)
from perfscope.analyzers.trace.memory_tables import FRAMES, HELD, MEMORY, SEGMENTS, TENSORS


class SliceKind(IntEnum):
    """What a host slice is."""

    OP = 0
    ANNOTATION = 1
    PYTHON = 2
    OVERHEAD = 3
    OTHER = 4


class CallKind(IntEnum):
    """What a runtime or driver call does."""

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
_STREAM = Column(name="stream", dtype="int64", unit="id", doc="stream or queue on that device")
_CORRELATION = id_column("correlation", "id that joins a runtime call with the work it launched")
_EXTERNAL = id_column("external_id", "id that joins device work and calls with the host op")

THREADS = Table(
    name="threads",
    doc="One row a host thread.",
    columns=(
        text_column("process", "process id or name as recorded"),
        text_column("thread", "thread id or name as recorded"),
    ),
)

DEVICES = Table(
    name="devices",
    doc="One row an accelerator that did work in the trace.",
    columns=(
        Column(name="ordinal", dtype="int64", unit="id", doc="number of the device in its process"),
        text_column("name", "product name", nullable=True),
        Column(name="cores", dtype="int64", unit="count", doc="SMs or CUs", nullable=True),
        Column(name="memory_bytes", dtype="int64", unit="B", doc="memory of the device", nullable=True),
    ),
)

SLICES = Table(
    name="slices",
    doc="One row a host span: framework op, annotation, Python function, profiler overhead. "
    "Sorted by thread, start, then longest first, so a parent stands before its children.",
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
    ),
)

CALLS = Table(
    name="calls",
    doc="One row a runtime or driver call on the host (CUDA, HIP, MTIA). `launches` and `syncs` are its parts.",
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
    doc="One row a kernel on a device.",
    columns=(
        start_column("the kernel"),
        end_column("the kernel"),
        text_column("name", "as recorded"),
        _DEVICE,
        _STREAM,
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
    doc="One row a copy or memset on a device.",
    columns=(
        start_column("the copy"),
        end_column("the copy"),
        text_column("name", "as recorded"),
        _DEVICE,
        _STREAM,
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
    doc="One row a collective as one rank saw it: a communication kernel, or a host span (gloo).",
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
    doc="One row a synchronisation as the device driver recorded it (only with sync events enabled).",
    columns=(
        start_column("the wait"),
        end_column("the wait"),
        text_column("name", "Stream Sync, Event Sync, Context Sync or Stream Wait Event"),
        _DEVICE,
        _STREAM,
        row_column("call", "calls", "the host call"),
        _CORRELATION,
    ),
)

HLO_OPS = Table(
    name="hlo_ops",
    doc="One row a time an instruction of a compiled XLA program ran: device work that says which instruction "
    "it is of (several rows, where one instruction launches several kernels), an instruction around others "
    "(a loop), or an op of XLA's CPU backend, whose devices are threads of the host.",
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
        row_column("kernel", "kernels", "its kernel on a device"),
        row_column("copy", "copies", "its copy on a device"),
        row_column("slice", "slices", "its op on the host; lasts as long as the call that began it"),
    ),
)

STEPS = Table(
    name="steps",
    doc="One row a step of the program's loop.",
    columns=(
        start_column("the step"),
        end_column("the step"),
        text_column("name", "as recorded"),
        Column(name="number", dtype="int64", unit="count", doc="number the program gave it"),
    ),
)

COUNTERS = Table(
    name="counters",
    doc="One row a sample of a counter.",
    columns=(
        Column(name="time_ns", dtype="int64", unit="ns", doc="when"),
        text_column("name", "counter and its series"),
        Column(name="value", dtype="float64", unit="as recorded", doc="the sample"),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        CALLS,
        COLLECTIVES,
        COPIES,
        COUNTERS,
        DEVICES,
        FRAMES,
        HELD,
        HLO_OPS,
        KERNELS,
        MEMORY,
        SEGMENTS,
        SLICES,
        STEPS,
        SYNC_RECORDS,
        TENSORS,
        THREADS,
    )
}
