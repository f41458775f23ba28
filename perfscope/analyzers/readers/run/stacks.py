"""Sampled Python stacks of a run, added to the trace of its timing pass, on its clock."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfscope.analyzers.time import main_thread
from perfscope.model.documents.stacks import StackSamples
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, TABLES, Rows, TraceBuilder


def attach_stacks(builder: TraceBuilder, processes: Sequence[StackSamples]) -> str | None:
    """Add ``samples``, their ``frames`` and threads to a trace. ``processes``: the program itself first.

    Common steps relate the clocks. Without any, a note is returned and nothing is added.
    """
    program = processes[0]
    offset = clock_offset_ns(builder.rows["steps"], program.steps)
    if offset is None:
        return "sampled stacks: they share no step with the trace, so their times are unknown"
    parts = [_samples(builder, process, program, offset, worker=process is not program) for process in processes]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["time_ns"], kind="stable")
    builder.table("samples", {name: values[order] for name, values in columns.items()})
    builder.record("python_samples")
    builder.attached["loaders"] = program.loaders
    return None


def clock_offset_ns(steps: Rows, counted: Sequence[tuple[int, int, int]]) -> int | None:
    """Return the offset from the process's clock to the trace's; ``None`` without a common step.

    ``counted``: (number, begin, end) of steps on the process's clock. It is the median over the steps in both.
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
    """Return the columns of one process and add its frames and threads; of a worker only the main thread."""
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
    """Return number and duration of the step at each time of the program's clock; ``MISSING`` between steps."""
    steps = sorted(program.steps, key=lambda step: step[1])
    numbers, begins, ends = np.array([(MISSING, 0, 0), *steps], np.int64).T
    row = np.searchsorted(begins[1:], times, side="right")
    row = np.where(times < ends[row], row, 0)
    return numbers[row], np.where(row > 0, (ends - begins)[row], MISSING)


def _add_frames(builder: TraceBuilder, process: StackSamples) -> int:
    """Add the frames of the process; return the row of the first. Frames of memory keep their rows."""
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
    """Return the row of ``threads`` of each thread of the process: the trace's own if it exists."""
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
