"""Sampled Python stacks of a run: put into the trace of its timing pass, on that one's clock."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfscope.analyzers.time import main_thread
from perfscope.model.documents.stacks import StackSamples
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, TABLES, Rows, TraceBuilder


def attach_stacks(builder: TraceBuilder, processes: Sequence[StackSamples]) -> str | None:
    """Put ``samples``, their ``frames`` and threads into a trace. ``processes``: the program itself first.

    The steps tell how the clocks go together. A note where they do not, and then nothing is put.
    """
    program = processes[0]
    offset = clock_offset_ns(builder.rows["steps"], program.steps)
    if offset is None:
        return "sampled stacks: no step of theirs is in the trace, so that their times are not known"
    parts = [_samples(builder, process, program, offset, worker=process is not program) for process in processes]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["time_ns"], kind="stable")
    builder.table("samples", {name: values[order] for name, values in columns.items()})
    builder.record("python_samples")
    builder.attached["loaders"] = program.loaders
    return None


def clock_offset_ns(steps: Rows, counted: Sequence[tuple[int, int, int]]) -> int | None:
    """Return what to add to a time of the process's clock to have one of the trace; ``None`` without a common step.

    ``counted``: (number, begin, end) of steps on the process's clock. The median over the steps that are in both.
    """
    begins = {number: begin for number, begin, _ in counted}
    both = [
        start - begins[number]
        for number, start in zip(steps["number"].tolist(), steps["start_ns"].tolist(), strict=True)
        if number in begins
    ]
    return round(float(np.median(np.array(both) - both[0]))) + both[0] if both else None


def _samples(
    builder: TraceBuilder, process: StackSamples, program: StackSamples, offset: int, *, worker: bool
) -> dict[str, np.ndarray]:
    """Columns of one process; its frames and threads go into the tables. Of a worker the main thread alone is told."""
    first = _add_frames(builder, process)
    threads = _add_threads(builder, process, worker=worker)
    frames, time = np.array(process.frame, np.int64), np.array(process.time_ns, np.int64)
    step, step_ns = _steps_at(program, time)
    columns = {
        "time_ns": time + offset,
        "lasts_ns": np.maximum(np.array(process.lasts_ns, np.int64), 0),
        "delay_ns": np.maximum(np.array(process.delay_ns, np.int64), 0),
        "cpu_ns": np.array(process.cpu_ns_of, np.int64),
        "thread": threads[np.array(process.thread, np.int64)],
        "frame": np.where(frames == -1, MISSING, frames + first).astype(np.int32),
        "worker": np.full(len(time), worker),
        "step": step,
        "step_ns": step_ns,
    }
    loops = np.array([thread.loop for thread in process.threads], bool)
    chosen = loops[np.array(process.thread, np.int64)] | (not worker)
    return {name: values[chosen] for name, values in columns.items()}


def _steps_at(program: StackSamples, times: Int64) -> tuple[Int64, Int64]:
    """Number and duration of the step that each time of the program's clock lies in; ``MISSING`` between steps."""
    steps = sorted(program.steps, key=lambda step: step[1])
    numbers, begins, ends = np.array([(MISSING, 0, 0), *steps], np.int64).T
    row = np.searchsorted(begins[1:], times, side="right")
    row = np.where(times < ends[row], row, 0)
    return numbers[row], np.where(row > 0, (ends - begins)[row], MISSING)


def _add_frames(builder: TraceBuilder, process: StackSamples) -> int:
    """Row of the first frame of the process; those of memory stay where they are."""
    texts = builder.codes(process.texts)
    callers, files, lines, functions = np.array(process.frames or np.empty((0, 4)), np.int64).T
    known = builder.rows.get("frames", Rows(TABLES["frames"], {}))
    first = len(known)
    added = {
        "file": _pick(texts, files),
        "line": np.where(lines == -1, MISSING, lines),
        "name": _pick(texts, functions),
        "parent": np.where(callers == -1, MISSING, callers + first),
    }
    builder.table(
        "frames", {name: np.concatenate([known[name], added[name]]).astype(known[name].dtype) for name in added}
    )
    return first


def _pick(codes: np.ndarray, index: Int64) -> np.ndarray:
    return np.where(index == -1, MISSING, codes[np.maximum(index, 0)]) if len(codes) else np.full(len(index), MISSING)


def _add_threads(builder: TraceBuilder, process: StackSamples, *, worker: bool) -> np.ndarray:
    """Row of ``threads`` of each thread of the process: the trace's own where it has the thread."""
    known = builder.rows.get("threads", Rows(TABLES["threads"], {}))
    names = [builder.strings[code] if code != MISSING else "" for code in known["thread"].tolist()]
    by_id = {int(number): row for row, name in enumerate(names) for number in re.findall(r"\d+", name)[:1]}
    main = main_thread(builder.build())
    rows: list[int] = []
    added: list[tuple[str, str]] = []
    for number, thread in enumerate(process.threads):
        row = None if worker or thread.native_id is None else by_id.get(thread.native_id)
        if thread.loop and not worker and main != MISSING:
            row = main
        if row is None:
            row = len(known) + len(added)
            label = process.name if process.worker is None else f"DataLoader worker {process.worker}"
            added.append((label if worker else "threads", thread.name or f"thread {number}"))
        rows.append(row)
    columns = {
        "process": np.concatenate([known["process"], builder.codes([process for process, _ in added])]),
        "thread": np.concatenate([known["thread"], builder.codes([name for _, name in added])]),
    }
    builder.table("threads", columns)
    return np.array(rows, np.int32)
