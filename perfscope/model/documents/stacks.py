"""Sampled Python stacks of one process: what `perfscope run` leaves in ``stacks.json.gz``.

A gzipped JSON document. Stacks are a tree: a frame names its caller, and a sample names its innermost frame. Times are
ns of the machine's monotonic clock, which all processes of a machine share; the steps of the program are in the file on
the same clock, so that a reader can put samples on the clock of a trace that has the same steps.

Only the standard library is imported at the top: it is written from inside the user's process.
"""

from __future__ import annotations

import gzip
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perfscope.model.errors import DataError
from perfscope.model.files import json_bytes

STACKS_SCHEMA = "perfscope.stacks/1"
STACKS_FILE = "stacks.json.gz"
STACKS_SUFFIX = ".stacks.json.gz"
WORKERS_FOLDER = "workers"
"""In the run directory: stacks of processes that the program started with ``multiprocessing``, ``PARENT-PID`` each."""

MOST_BYTES = 64 << 20
"""Unpacked. A file with all that a sampler keeps at most is a tenth of it."""

SWITCH_NS = 250_000
"""Least time that the sampler waits for a thread that runs Python before the interpreter requests the release of its
lock. A sample with a shorter delay was taken while no thread ran Python."""

COLLECTING = "garbage collection"
"""Name of the frame that represents the interpreter's garbage collector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackThread:
    """A thread that was sampled."""

    name: str
    native_id: int | None
    """The system's id of the thread."""
    loop: bool
    """It runs the program's steps; of a worker, it is the main thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledLoader:
    """A ``torch.utils.data.DataLoader`` that the program iterated over."""

    dataset: str
    batch_size: int | None
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSamples:
    """Everything of one process. Columns of samples have one length."""

    schema: str = STACKS_SCHEMA
    name: str
    """``main``, or what ``multiprocessing`` calls the worker."""
    worker: int | None = None
    """Number of a DataLoader's worker."""
    period_ns: int
    """Time between two samples at the end; it grows where sampling was too expensive."""
    cpu_ns: int
    """Processor time of the sampling thread."""
    wall_ns: int
    """Time over which it sampled."""
    stopped: str | None = None
    """Why it ended before the program did."""
    threads: tuple[StackThread, ...]
    texts: tuple[str, ...]
    """Files and functions."""
    frames: tuple[tuple[int, int, int, int], ...]
    """(Caller, file, line, function): row of ``frames`` or -1, index of ``texts`` or -1, number or -1, index."""
    time_ns: tuple[int, ...]
    lasts_ns: tuple[int, ...]
    """Time since the previous sampling; a sample represents it."""
    delay_ns: tuple[int, ...]
    """By how much later than due it was taken: the sampler waited for the interpreter's lock, or for a processor."""
    thread: tuple[int, ...]
    frame: tuple[int, ...]
    """Innermost frame; -1: not a frame of the program."""
    cpu_ns_of: tuple[int, ...]
    """Processor time of the thread since its sample before; -1: not known."""
    steps: tuple[tuple[int, int, int], ...] = ()
    """(Number, begin, end) of steps that were sampled."""
    loaders: tuple[SampledLoader, ...] = field(default=())


def dump_stacks(samples: StackSamples) -> bytes:
    """As gzipped JSON."""
    return gzip.compress(json_bytes(asdict(samples)), 1, mtime=0)


def load_stacks(path: Path) -> StackSamples:
    """The samples in a file; ``DataError`` if it is missing, too large, corrupt, or contradicts itself."""
    from perfscope.model.documents.bounded_json import read_document

    samples = read_document(path, StackSamples, STACKS_SCHEMA, what="stack samples", most_bytes=MOST_BYTES)
    columns = (samples.time_ns, samples.lasts_ns, samples.delay_ns, samples.thread, samples.frame, samples.cpu_ns_of)
    texts = len(samples.texts)
    sound = (
        len({len(column) for column in columns}) == 1
        and all(0 <= thread < len(samples.threads) for thread in samples.thread)
        and all(-1 <= frame < len(samples.frames) for frame in samples.frame)
        and all(
            -1 <= caller < row and -1 <= file < texts and 0 <= function < texts and -1 <= line < 1 << 31
            for row, (caller, file, line, function) in enumerate(samples.frames)
        )
        and all(abs(value) < 1 << 62 for column in (*columns, *samples.steps) for value in column)
    )
    if not sound:
        raise DataError(f"{path}: stack samples point outside their tables")
    return samples
