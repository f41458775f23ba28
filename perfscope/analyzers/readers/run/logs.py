"""Files of the capture `torch_compile`: the log, fusion refusals, and the steps that compiled."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from perfscope.analyzers.readers.run.file_names import FileNames
from perfscope.analyzers.readers.torch_log.fusion import read_fusion, with_kernels
from perfscope.analyzers.readers.torch_log.reader import read_log
from perfscope.model.compile_log import CompileLog, StepSpan
from perfscope.model.documents.bounded_json import read_document, read_lines
from perfscope.model.documents.run import COMPILE_STEPS_FILE, COMPILE_STEPS_SCHEMA, FUSION_FILE
from perfscope.model.errors import DataError
from perfscope.model.jax_log import EVENTS_SCHEMA, SYNCS_SCHEMA, CompileEvent, HostRead
from perfscope.model.trace import Rows

MAX_STEPS_BYTES = 64 << 20

ONE_CLOCK_NS = 1_000_000
"""The log and torch's profiler read the same clock within some us, and a step range opens within a ms of its mark. A
larger difference means two clocks.
"""

MAX_JAX_LOG_BYTES = 256 << 20
"""Maximum bytes of a file; 20,000 records of 2,000 characters take far less."""

Record = TypeVar("Record", CompileEvent, HostRead)


class _Mark(msgspec.Struct):
    step: int
    time_ns: int


class _Steps(msgspec.Struct):
    settings: tuple[str, ...] = ()
    scheduled_graphs: int = 0
    fusion_problem: str | None = None
    spans: tuple[StepSpan, ...] = ()
    marks: tuple[_Mark, ...] = ()
    folders: tuple[str, ...] = ()


def read_compile(path: Path, steps: Rows | None) -> tuple[CompileLog, list[str]]:
    """Return the log in ``path`` with the files next to it, and notes for a reader of the report.

    ``steps``: the steps of its trace, whose clock is wanted. ``DataError`` if the log itself is unreadable; faults of
    the other files become notes.
    """
    notes = []
    written = None
    try:
        written = read_document(
            path.parent / COMPILE_STEPS_FILE,
            _Steps,
            COMPILE_STEPS_SCHEMA,
            what="the steps of a run",
            most_bytes=MAX_STEPS_BYTES,
        )
    except DataError as error:
        notes.append(f"steps that compiled are unknown: {error}")
    log = read_log(path, () if written is None else written.folders)
    if log.corrupt:
        notes.append(f"torch.compile's log: {log.corrupt:,} records are corrupt and left out")
    watched = written is not None and written.fusion_problem is None
    if written is not None:
        log = replace(
            log,
            steps=written.spans,
            settings=written.settings,
            scheduled_graphs=written.scheduled_graphs,
            clock_offset_ns=_offset_ns(written.marks, steps),
        )
    fusion = path.parent / FUSION_FILE
    if fusion.exists():
        try:
            fusion_log = read_fusion(fusion)
        except DataError as error:
            notes.append(f"fusion decisions are corrupt: {error}")
            watched = False
        else:
            watched = True
            log = replace(log, refusals=with_kernels(fusion_log.refusals, log.kernels))
            if fusion_log.damaged:
                notes.append(f"fusion decisions: {fusion_log.damaged:,} lines are corrupt and left out")
            if fusion_log.left_out:
                notes.append(f"fusion decisions: {fusion_log.left_out:,} refusals beyond the limit were not kept")
    cached = sum("hit" in compiled.caches.values() for compiled in log.compiles)
    if cached:
        notes.append(
            f"inductor's caches held {cached:,} of {len(log.compiles):,} compilations, whose fusion decisions are "
            "unknown; TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 has them compiled again"
        )
    watched = watched and bool(log.scheduled_graphs or log.refusals)
    return replace(log, has_refusals=watched), notes


def _offset_ns(marks: tuple[_Mark, ...], steps: Rows | None) -> int:
    """Return the offset to add to times of the log; 0 if both clocks are one, or nothing relates them."""
    if steps is None:
        return 0
    begun = {mark.step: mark.time_ns for mark in marks}
    apart = sorted(
        int(start) - begun[int(number)]
        for number, start in zip(steps["number"], steps["start_ns"], strict=True)
        if int(number) in begun
    )
    middle = (
        apart[len(apart) // 2] if apart else 0
    )  # The median of integers, because a float holds such times to 256 ns.
    return middle if abs(middle) > ONE_CLOCK_NS else 0


# The logs of a JAX program in a run: ``events.jsonl`` and ``syncs.jsonl``. Read as part of a run, never alone.


def read_events(path: Path) -> tuple[CompileEvent, ...]:
    """Return the compilations, in order of their ends; ``DataError`` if the file is corrupt or of another schema."""
    return _read(path, EVENTS_SCHEMA, CompileEvent)


def read_file_names(path: Path) -> FileNames:
    """Return how jax spells the program's files, from the log of compilations; ``DataError`` as in ``read_events``."""
    head, *_ = read_lines(path, EVENTS_SCHEMA, what="a log of a run", most_bytes=MAX_JAX_LOG_BYTES)
    try:
        return msgspec.json.decode(head, type=FileNames)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a log of a run ({error})") from error


def read_syncs(path: Path) -> tuple[HostRead, ...]:
    """Return the reads, in order of their ends; ``DataError`` as in ``read_events``."""
    return _read(path, SYNCS_SCHEMA, HostRead)


def _read(path: Path, schema: str, kind: type[Record]) -> tuple[Record, ...]:
    head, *lines = read_lines(path, schema, what="a log of a run", most_bytes=MAX_JAX_LOG_BYTES)
    decoder = msgspec.json.Decoder(kind)
    try:
        written = msgspec.json.decode(head).get("records")
        records = tuple(decoder.decode(line) for line in lines)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a log of a run ({error})") from error
    if written != len(records):
        raise DataError(f"{path}: {len(records)} records where {written!r} were written")
    return records
