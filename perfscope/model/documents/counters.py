"""Counters that a process read at the boundaries of its steps: ``counters.json.gz`` of `perfscope run`.

A gzipped JSON document of columns. Times are ns of the machine's monotonic clock, as in ``stacks.json.gz``. Counters
of the system are cumulative; a reader takes differences. -1: not known.

Only the standard library is imported at the top: it is written from inside the user's process.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perfscope.model.errors import DataError

COUNTERS_SCHEMA = "perfscope.counters/1"
COUNTERS_FILE = "counters.json.gz"

MOST_BYTES = 64 << 20
"""Unpacked. The largest document that a process writes is a tenth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldName:
    """A variable of the program's own code whose value grew, and how."""

    name: str
    """As in the code: ``losses``, ``self.history``."""
    kind: str
    """``graph``: a tensor whose autograd graph grew. ``array``: a tensor or array that grew. ``container``: a list,
    dict, set or deque that grew."""
    file: str
    line: int | None
    """Line that makes it grow, by an assignment that reads the variable or by a call of a method that adds to it."""
    function: str
    step: tuple[int, ...]
    """Numbers of the steps after which it was looked at."""
    size: tuple[int, ...]
    """Nodes of the graph, bytes of the array, or elements of the container."""
    bytes: tuple[int, ...] = ()
    """Bytes of the tensors and arrays in it; of a graph empty."""
    graphs: bool = False
    """For a container: whether its last element is a tensor with an autograd graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideWork:
    """A save, a wait for one, or an evaluation."""

    activity: str
    """``save``, ``wait`` (for an asynchronous save) or ``evaluation``."""
    call: str
    """Function that was called, such as ``save``."""
    file: str
    """File of the line; empty without a line of the program."""
    line: int | None
    function: str
    begin_ns: int
    end_ns: int
    stored_ns: int = -1
    """When a save was stored: later than the end of an asynchronous one; -1: not known."""
    bytes: int = -1
    """Bytes that the process wrote from its begin until it was stored."""
    of_steps: bool = True
    """Whether it ran on the main thread of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounters:
    """Everything of one process. Columns of one group have one length."""

    schema: str = COUNTERS_SCHEMA
    supported: str | None = None
    """Why the system does not count waiting for a core, or ``None`` if it does."""
    cores: int = 0
    """Cores that the process may run on."""
    core_limit: float | None = None
    """Cores' worth of processor time that its cgroup may use; ``None``: no limit."""
    compute_threads: int = 0
    """Threads that the framework computes with in this process; 0: not known."""
    local_processes: int = 1
    """Processes that the launcher started on this machine."""

    step_number: tuple[int, ...] = ()
    step_begin_ns: tuple[int, ...] = ()
    step_end_ns: tuple[int, ...] = ()
    step_free: tuple[bool, ...] = ()
    """The step ran without a profiler, and its time counts as a step's time."""

    read_ns: tuple[int, ...] = ()
    """When the counters of cores were read."""
    cpu_ns: tuple[int, ...] = ()
    """Processor time of the thread of the steps."""
    process_cpu_ns: tuple[int, ...] = ()
    """Processor time of all threads of the process; empty in older files."""
    wait_ns: tuple[int, ...] = ()
    """Time in which that thread could have run and had no core."""
    others_wait_ns: tuple[int, ...] = ()
    """The same of the thread of the process that waited most since the reading before; summed over the readings."""
    switches: tuple[int, ...] = ()
    """Times the system took the core from the thread of the steps."""

    machine_ns: tuple[int, ...] = ()
    """When the machine was looked at."""
    busy_ns: tuple[int, ...] = ()
    """Processor time of all processes of the machine, in steps of 10 ms as a rule."""
    own_busy_ns: tuple[int, ...] = ()
    """Processor time of this process at the same moment."""
    throttled_ns: tuple[int, ...] = ()
    """Time for which the cgroup was stopped because it had used its processor time."""

    memory_step: tuple[int, ...] = ()
    """Number of the step after which memory was read."""
    rss_bytes: tuple[int, ...] = ()
    """Memory of the process."""
    device_bytes: tuple[int, ...] = ()
    """In use on the device (torch's allocator), or in arrays that are alive (JAX)."""

    held: tuple[HeldName, ...] = field(default=())

    side_work: tuple[SideWork, ...] | None = None
    """In the order of their ends; ``None`` in older files."""
    side_work_dropped: int = 0
    """Number of later saves, waits and evaluations that are not in ``side_work``."""

    storage_step: tuple[int, ...] = ()
    """Number of the step after which the counters of storage were read."""
    storage_ns: tuple[int, ...] = ()
    """When they were read."""
    storage_read_bytes: tuple[int, ...] = ()
    """By system calls that read, of the process and its workers."""
    storage_fetched_bytes: tuple[int, ...] = ()
    """The part of them, and of mapped files, that came from storage and not from the page cache."""


def dump_counters(counters: StepCounters) -> bytes:
    """As gzipped JSON."""
    return gzip.compress(json.dumps(asdict(counters), separators=(",", ":")).encode(), 1, mtime=0)


def load_counters(path: Path) -> StepCounters:
    """The counters in a file; ``DataError`` if it is missing, too large, corrupt, or contradicts itself."""
    from perfscope.model.documents.bounded_json import read_document

    found = read_document(path, StepCounters, COUNTERS_SCHEMA, what="step counters", most_bytes=MOST_BYTES)
    groups = (
        (found.step_number, found.step_begin_ns, found.step_end_ns, found.step_free),
        (
            found.read_ns,
            found.cpu_ns,
            found.process_cpu_ns or found.cpu_ns,
            found.wait_ns,
            found.others_wait_ns,
            found.switches,
        ),
        (found.machine_ns, found.busy_ns, found.own_busy_ns, found.throttled_ns),
        (found.memory_step, found.rss_bytes, found.device_bytes),
        (found.storage_step, found.storage_ns, found.storage_read_bytes, found.storage_fetched_bytes),
        *((held.step, held.size, held.bytes or held.step) for held in found.held),
    )
    sound = all(len({len(column) for column in group}) == 1 for group in groups) and all(
        abs(value) < 1 << 62 for group in groups for column in group for value in column
    )
    events = found.side_work or ()
    sound = sound and all(
        abs(value) < 1 << 62
        for event in events
        for value in (event.begin_ns, event.end_ns, event.stored_ns, event.bytes, event.line or 0)
    )
    if not sound:
        raise DataError(f"{path}: step counters of different length, or out of range")
    return found
