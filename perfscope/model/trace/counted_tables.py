"""Tables of counters that a run reads at the boundaries of its steps, with a profiler and without."""

from __future__ import annotations

from perfscope.model.trace.columns import Column, Table, text_column


def _from_until(what: str) -> tuple[Column, Column]:
    """Not ``start_ns`` and ``end_ns``: the rows reach beyond what the profiler recorded."""
    return (
        Column(name="from_ns", dtype="int64", unit="ns", doc=f"{what} began, on the trace's clock"),
        Column(name="until_ns", dtype="int64", unit="ns", doc=f"{what} ended (half open)"),
    )


CORES = Table(
    name="cores",
    doc="One row per time between two readings of the system's counters of the thread of the steps (`perfscope run` "
    "on Linux), in order of time, also outside the traced steps.",
    columns=(
        *_from_until("the time between two readings"),
        Column(name="cpu_ns", dtype="int64", unit="ns", doc="processor time of the thread"),
        Column(name="wait_ns", dtype="int64", unit="ns", doc="the thread could have run and had no core"),
        Column(
            name="others_wait_ns",
            dtype="int64",
            unit="ns",
            doc="the same of that other thread of the process that waited longest for a core",
        ),
        Column(
            name="switches",
            dtype="int64",
            unit="count",
            doc="times the system took the core from the thread; counted at the ends of steps",
        ),
    ),
)

RUN_STEPS = Table(
    name="run_steps",
    doc="One row per step of the run that was kept (`perfscope run`), in order; a long run keeps every second, fourth "
    "... step.",
    columns=(
        Column(name="number", dtype="int64", unit="count", doc="number of the step, from 0"),
        *_from_until("the step"),
        Column(name="free", dtype="bool", unit="flag", doc="it ran without a profiler, and its time counts"),
        Column(
            name="wait_ns",
            dtype="int64",
            unit="ns",
            doc="the thread of the steps waited for a core; readings that span several steps are shared by time",
            nullable=True,
        ),
        Column(
            name="others_wait_ns",
            dtype="int64",
            unit="ns",
            doc="the same of that other thread of the process that waited longest for a core",
            nullable=True,
        ),
    ),
)

RUN_MEMORY = Table(
    name="run_memory",
    doc="One row per reading of the process's memory after a step without a profiler (`perfscope run`), in order.",
    columns=(
        Column(name="step", dtype="int64", unit="count", doc="number of the step"),
        Column(name="rss_bytes", dtype="int64", unit="B", doc="resident memory of the process", nullable=True),
        Column(
            name="device_bytes",
            dtype="int64",
            unit="B",
            doc="in use on the device (torch's allocator), or in arrays that are alive (JAX)",
            nullable=True,
        ),
    ),
)

HELD_NAMES = Table(
    name="held_names",
    doc="One row per look at a variable of the program whose value grew over the run (`perfscope run`).",
    columns=(
        text_column("name", "the variable as in the code, such as `self.history`"),
        text_column("kind", "`graph`: an autograd graph; `array`: a tensor or array; `container`: a list, dict ..."),
        text_column("file", "file of the line"),
        Column(name="line", dtype="int64", unit="line", doc="line that makes it grow", nullable=True),
        text_column("function", "function of the line"),
        Column(name="step", dtype="int64", unit="count", doc="number of the step after which it was looked at"),
        Column(
            name="size", dtype="int64", unit="count", doc="nodes of the graph, bytes of the array, elements otherwise"
        ),
        Column(name="bytes", dtype="int64", unit="B", doc="bytes of the tensors and arrays in it, without graphs"),
        Column(name="graphs", dtype="bool", unit="flag", doc="what it holds last has an autograd graph"),
    ),
)

SIDE_WORK = Table(
    name="side_work",
    doc="One row per save of a checkpoint, wait for such a save, or evaluation of the run (`perfscope run`), in order "
    "of time.",
    columns=(
        *_from_until("the call, or the evaluation,"),
        text_column("kind", "`save`, `wait` (until an asynchronous save is stored) or `evaluation`"),
        text_column("call", "function that was called; of an evaluation `eval`"),
        text_column("file", "file of the program's line", nullable=True),
        Column(name="line", dtype="int64", unit="line", doc="line of the program", nullable=True),
        text_column("function", "function of the line", nullable=True),
        Column(
            name="stored_ns",
            dtype="int64",
            unit="ns",
            doc="when a save was stored, on the trace's clock: after `until_ns` if it is asynchronous",
            nullable=True,
        ),
        Column(
            name="bytes",
            dtype="int64",
            unit="B",
            doc="bytes that the process wrote from the begin until it was stored",
            nullable=True,
        ),
        Column(name="of_steps", dtype="bool", unit="flag", doc="it ran on the main thread of the program"),
    ),
)

STORAGE = Table(
    name="storage",
    doc="One row per reading of the system's counters of storage after a step (`perfscope run` on Linux), in order; "
    "sums since the begin of the processes, of the program and its living workers.",
    columns=(
        Column(name="step", dtype="int64", unit="count", doc="number of the step"),
        Column(name="at_ns", dtype="int64", unit="ns", doc="when, on the trace's clock"),
        Column(name="read_bytes", dtype="int64", unit="B", doc="by system calls that read, from the page cache too"),
        Column(name="fetched_bytes", dtype="int64", unit="B", doc="from storage, also for memory mapped to files"),
    ),
)
