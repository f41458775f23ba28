"""Run: a directory from `perfscope run`. Each process is one trace.

```
20261120-174233-train-7f3a/
  run.json                              the manifest
  rank00000/process.json                steps, captures, reasons of missing ones
  rank00000/timing.pt.trace.json.gz     light pass with the times of the trace
  rank00000/timing-2.pt.trace.json.gz   recorded later by ``perfscope trigger``: the newest is shown
  rank00000/detail.pt.trace.json.gz     shapes, memory, stacks: call sites only, attached as ``detail``
  rank00000/structure.opgraph.json.gz   op graph of one step, attached as ``op_graph``
  rank00000/timing.xplane.pb            jax: the light pass; the compiled programs are in it
  rank00000/events.jsonl                jax: compilations and retraces, ``compile_events``
  rank00000/syncs.jsonl                 jax: reads of arrays by the host, ``host_reads``
  rank00000/memory/{before,after}.prof  jax: memory before and after the traced steps, ``held``
  rank00000/hlo/*.hlo.pb                jax: the programs, read without a timing pass
  nsys/export.sqlite                    Nsight Systems around the program: the timing pass of all its processes
  rank00000/tensors.json.gz             parameters, gradients, optimizer state when the passes began, ``tensors``
  rank00000/memory.pickle.gz            CUDA: the allocator during the detail pass, in ``detail``
  rank00000/out_of_memory.pickle.gz     CUDA: the allocator at a failed allocation, a separate trace
  rank00000/stacks.json.gz              sampled Python stacks, ``samples``
  rank00000/counters.json.gz            waiting for cores, memory and variables at the ends of steps
  rank00000/numerics.json.gz            values recorded by ``--numerics``, ``numerics``
  workers/PARENT-PID.stacks.json.gz     stacks of a worker process
  rank00000/compile/                    torch.compile's log, fusion refusals, steps that compiled: ``compile_log``
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.hlo import HloModule
from perfscope.analyzers.readers.hlo import proto
from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.analyzers.readers.run.counters import attach_counters
from perfscope.analyzers.readers.run.file_names import FileNames
from perfscope.analyzers.readers.run.logs import read_compile, read_events, read_file_names, read_syncs
from perfscope.analyzers.readers.run.memory import (
    SNAPSHOT_PASS,
    MemoryMoments,
    TensorListings,
    attach_snapshot,
    failed_allocations,
    read_moments,
    read_tensors,
)
from perfscope.analyzers.readers.run.nsys import Recordings
from perfscope.analyzers.readers.run.parts import FORMAT, RunPart, divide_run, trace_order, why_nothing_captured
from perfscope.analyzers.readers.run.stacks import attach_stacks
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.analyzers.time import late_span_ns, steps_work
from perfscope.model.capture import TOOLS, WINDOW_SIZES
from perfscope.model.compile_log import CompileLog
from perfscope.model.documents import run_folders
from perfscope.model.documents.counters import StepCounters, load_counters
from perfscope.model.documents.run import Capture, Process, Run
from perfscope.model.documents.stacks import StackSamples, load_stacks
from perfscope.model.errors import DataError
from perfscope.model.intervals import intersection_total, union
from perfscope.model.jax_log import HostRead
from perfscope.model.memory import AllocatorCounters
from perfscope.model.op_graph import OpGraph
from perfscope.model.plugins import Recording, load, named
from perfscope.model.trace import MISSING, Source, Trace, TraceBuilder
from perfscope.model.units import format_ns

NOTED_SLOWDOWN = 1.1
"""Traced over untraced step time from which the reader gets a note; launches differ by less without a cause."""

WAITING_SHARE = 0.5
"""Share of the watched steps; a program that reads every second step is throttled by it."""

WATCHED_STEPS = 64
"""Steps in which reads are watched (`profiler/jax/host_syncs.py`)."""

_TIMED = ("timing", "detail")
"""Passes whose times may be shown, the least disturbed first."""


# Why a run of ours has no step for plans, and how to record one.


def why_no_step(run: Run, process: Process) -> str:
    """Return what the run was started with, or what stopped it, and the command that records the step's ops.

    For a process whose recording has no op graph (PyTorch) and no compiled program (JAX).
    """
    if any(capture.tool.startswith("jax") for capture in process.captures):
        why = _why_missing(process, "jax_hlo") or "none ran in the traced steps"
        return f"the run has no compiled XLA program: {why}. Put the step under jax.jit, and record steps that call it"
    options = run.options
    left_out = {
        "nothing but step times": options.get("times_only"),
        f"--capture {options.get('capture')}": options.get("capture") in TOOLS,
        "--whole": options.get("whole"),
        "--level light": options.get("level") == "light",
    }
    chosen = [option for option, given in left_out.items() if given]
    why = f"it was recorded with {' and '.join(chosen)}" if chosen else _why_missing(process, "op_graph") or ""
    return (
        f"the run has no op graph of a step: {why or 'it has no structure pass'}. It took {process.steps_seen} steps; "
        "perfscope run at its default level records one of a program with a few steps, found from the optimizer or "
        "marked with perfscope.step(), that runs without torch.compile"
    )


def _why_missing(process: Process, tool: str) -> str | None:
    """Return why a tool that ran left no artifact; ``None`` if it did not run, or has one."""
    missing = [capture for capture in process.captures if capture.tool == tool and capture.artifact is None]
    return next((capture.reason or f"it is {capture.state}" for capture in missing), None)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the path is a directory with a run's manifest."""
    return path.is_dir() and run_folders.is_run(path)


def read(path: Path) -> list[Trace]:
    """Return one trace per process, by rank. ``DataError`` if nothing was captured, or the manifest is corrupt.

    A corrupt artifact is left out and named in the source's notes; the others are read.
    """
    divided = divide_run(path)
    traces: list[Trace] = []
    damaged = []
    for part in divided.parts:
        try:
            traces += read_part(part)
        except DataError as error:
            damaged.append(error)
    if not traces:
        raise damaged[0] if damaged else DataError(f"{path}: {why_nothing_captured(divided.run)}")
    return sorted(traces, key=trace_order)


def read_part(part: RunPart) -> list[Trace]:
    """Return the traces of the processes of a part, in order; empty if they captured nothing.

    ``DataError`` if their captures are corrupt and nothing else is left.
    """
    path = Path(part.path)
    recordings = Recordings(path, part.processes)
    found = [_process(path, part, process, recordings) for process in part.processes]
    failures, damaged = failed_allocations(path, part)
    traces = [trace for trace in found if trace is not None] + recordings.further + failures
    if not traces and damaged is not None:
        raise damaged
    if not traces and recordings.problems:
        raise DataError(next(iter(recordings.problems.values())))
    return traces


def _compiling_ns(trace: Trace, log: CompileLog | None) -> int:
    """Return the compilation time of torch.compile within the traced steps."""
    if log is None:
        return 0
    phases = union([phase.start_ns for phase in log.phases], [phase.end_ns for phase in log.phases])
    steps = trace.rows["steps"]
    starts, ends = steps["start_ns"] - log.clock_offset_ns, steps["end_ns"] - log.clock_offset_ns
    return intersection_total(phases, union(starts, ends))


def _slowdown(trace: Trace, free_ns: float | None, compiling_ns: int) -> list[str]:
    """Return notes about the profiler's cost per step, if it is large enough to matter for savings.

    ``free_ns``: a step without the profiler, measured as the traced ones: on the host, or with its work.
    ``compiling_ns``: of all traced steps, which is not a cost of the profiler.
    """
    steps = trace.rows["steps"]
    if not len(steps) or not free_ns:
        return []
    late = late_span_ns(trace)
    traced_ns = float(np.median(steps["end_ns"] - steps["start_ns"])) if late is None else late / len(steps)
    ratio = traced_ns / free_ns
    if ratio < NOTED_SLOWDOWN:
        return []
    compiling = f", with {format_ns(compiling_ns)} of compiling in them" if compiling_ns else ""
    return [
        f"traced steps took {ratio:.2f} times as long as steps without a profiler{compiling}; savings and their shares "
        "are rescaled to the latter"
    ]


def _free_step_ns(trace: Trace, process: Process, *, waits: bool) -> float | None:
    """Return a step without a profiler that is comparable with the traced ones; ``None`` without one."""
    if late_span_ns(trace) is None and waits:
        return float(np.median(process.untraced_step_ns)) if process.untraced_step_ns else None
    return process.window_ns / process.window_steps if process.window_ns and process.window_steps > 0 else None


def _jax_notes(main: Trace | None, process: Process, *, waits: bool) -> list[str]:
    """Return what the step times of a JAX program mean, if they are not the host's."""
    notes = []
    if main is not None and late_span_ns(main) is not None:
        work = main.fact(steps_work)
        how = "the time from the end of one step's work to the end of the next step's"
        if work is None or not work.steps:
            how = "unknown: the recording does not assign work to steps"
        notes.append(f"no step waits for its work: a traced step is {how}")
    if not waits and process.window_ns is None:
        notes.append(
            f"no step time without a profiler: it takes {WINDOW_SIZES[0]} steps in a row after the traced ones, in "
            "which nothing is compiled"
        )
    if process.window_compilations:
        notes.append(
            f"{process.window_compilations} compilations are in the {process.window_steps} steps that were timed "
            "without a profiler"
        )
    return notes


class _Captured(Struct, kw_only=True):
    """Recorded data of one process, as far as it could be read."""

    folder: Path
    process: Process
    recordings: Recordings
    notes: list[str]
    timed: dict[str, Trace] = field(default_factory=dict)
    """Trace by pass."""
    op_graph: OpGraph | None = None
    programs: Path | None = None
    tensors: TensorListings | None = None
    snapshot: Trace | None = None
    moments: MemoryMoments | None = None
    stacks: list[StackSamples] = field(default_factory=list)
    """Stacks of the program itself first, then of its workers."""
    counters: StepCounters | None = None
    logs: dict[str, Any] = field(default_factory=dict)
    """``compile_events``, ``host_reads`` and ``compile_log`` of the trace, if recorded."""
    documents: dict[str, Any] = field(default_factory=dict)
    """Documents of plug-ins' recorders."""
    file_names: FileNames = FileNames()
    """How jax spells the program's files."""

    @property
    def main(self) -> Trace | None:
        """The trace whose times are shown."""
        return next((self.timed[name] for name in _TIMED if name in self.timed), None)


def _attach(captured: _Captured, capture: Capture, path: Path) -> None:
    """Read an artifact by its tool; artifacts of other tools are skipped."""
    match capture.tool:
        case "torch_profiler":
            if capture.pass_name in _TIMED:
                captured.timed[capture.pass_name] = _whole_steps(kineto_reader.read(path), capture.steps)
        case "jax_profiler":
            captured.timed[capture.pass_name] = xspace_reader.read_file(path)
        case "nsys":
            _attach_nsys(captured, capture)
        case "jax_events":
            captured.logs["compile_events"] = read_events(path)
            captured.file_names = read_file_names(path)
        case "jax_sync":
            captured.logs["host_reads"] = _reads_in_steps(read_syncs(path), captured.process)
        case "torch_memory":
            if capture.pass_name == SNAPSHOT_PASS:
                captured.snapshot = torch_memory_reader.read(path)
        case "torch_tensors":
            captured.tensors = read_tensors(path)
        case "jax_memory":
            captured.moments = read_moments(path)
            captured.notes += captured.moments.notes
        case "python_stacks":
            captured.stacks.append(load_stacks(path))
        case "step_counters":
            captured.counters = load_counters(path)
        case "jax_hlo":
            captured.programs = path
        case "op_graph":
            captured.op_graph = read_op_graph(path)
        case "torch_compile":  # The manifest lists it after the passes whose clock it uses.
            main = captured.main
            log, notes = read_compile(path, None if main is None else main.rows["steps"])
            captured.logs["compile_log"] = log
            captured.notes += notes
        case tool:
            _attach_document(captured, tool, path)


def _attach_document(captured: _Captured, tool: str, path: Path) -> None:
    recordings: Mapping[str, Recording] = named("recordings")
    for key, recording in recordings.items():
        if tool in recording.tools:
            captured.documents[key] = load(recording.read)(path)
            captured.notes += captured.documents[key].notes


def _reads_in_steps(reads: Sequence[HostRead], process: Process) -> tuple[HostRead, ...]:
    """Return the reads; those after the end of the last step have no step.

    If calls are the steps, one begins when the last ends, so reads at the program's end would be in it.
    """
    seen = process.steps_seen
    return tuple(
        replace(read, step=None) if seen and read.step is not None and read.step >= seen else read for read in reads
    )


def _attach_nsys(captured: _Captured, capture: Capture) -> None:
    recordings, process = captured.recordings, captured.process
    problem = recordings.problems.get(str(capture.artifact))
    if problem is not None:
        captured.notes.append(f"{capture.pass_name} pass is corrupt: {problem}")
    trace = recordings.of(process)
    if trace is not None:
        captured.timed[capture.pass_name] = trace
        if process.directory in recordings.notes:
            captured.notes.append(recordings.notes[process.directory])


def _read_captures(path: Path, run: Run, process: Process, recordings: Recordings) -> _Captured:
    """Read every artifact of the process, and attach the parts to its traces."""
    captured = _Captured(folder=path, process=process, recordings=recordings, notes=[*run.notes])
    notes = captured.notes
    if run.state != "finished":
        notes.append(f"the run is {run.state}: the captures up to then are shown")
    notes += [f"{capture.pass_name} pass: {capture.reason}" for capture in process.captures if capture.reason]
    for capture in process.captures:
        if capture.artifact is None:
            continue
        try:
            _attach(captured, capture, path / capture.artifact)
        except DataError as error:
            here = (path / capture.artifact).exists()
            notes.append(
                f"{capture.pass_name} pass is corrupt: {error}"
                if here
                else f"{capture.pass_name} pass was recorded, and its file {capture.artifact} is not in this folder"
            )
    triggered = [capture for capture in process.captures if capture.pass_name == _TIMED[0] and capture.artifact]
    if len(triggered) > 1 and (newest := triggered[-1].steps) is not None:
        notes.append(
            f"steps {newest[0]} to {newest[1] - 1} are shown, the newest of {len(triggered)} recordings; the earlier "
            f"files are {', '.join(str(capture.artifact) for capture in triggered[:-1])}"
        )
    _attach_memory(captured)
    if captured.stacks:
        _attach_stacks(captured)
    if captured.counters is not None:
        _attach_counters(captured, captured.counters)
    if captured.file_names != FileNames():
        captured.timed = {name: captured.file_names.in_trace(trace) for name, trace in captured.timed.items()}
    return captured


def _attach_memory(captured: _Captured) -> None:
    """Attach the memory captures to each pass."""
    main = captured.main
    for name, trace in captured.timed.items():
        builder = TraceBuilder.of(trace)
        _device_memory(builder, captured.process)
        if captured.tensors is not None:
            captured.tensors.attach(builder, name)
        if captured.snapshot is not None and name == "detail":
            attach_snapshot(builder, captured.snapshot)
        if captured.moments is not None and trace is main:
            captured.moments.attach(builder)
        captured.timed[name] = builder.build()
    if captured.tensors is not None:
        captured.notes += captured.tensors.notes()


def _attach_stacks(captured: _Captured) -> None:
    """Attach the samples to the timing pass, because only its steps have comparable times."""
    timing = captured.timed.get("timing")
    if timing is None:
        return
    builder = TraceBuilder.of(timing)
    note = attach_stacks(builder, captured.stacks)
    captured.timed["timing"] = builder.build()
    if note is not None:
        captured.notes.append(note)


def _attach_counters(captured: _Captured, counters: StepCounters) -> None:
    """Attach the step counters of the whole run to the trace whose times are shown."""
    name = next((name for name in _TIMED if name in captured.timed), None)
    if name is None:
        return
    builder = TraceBuilder.of(captured.timed[name])
    attach_counters(builder, counters)
    captured.timed[name] = builder.build()


def _process(path: Path, part: RunPart, process: Process, recordings: Recordings) -> Trace | None:
    """Return the trace of a process; ``None`` if it captured nothing."""
    captured = _read_captures(path, part.run, process, recordings)
    main, notes, logs = captured.main, captured.notes, captured.logs
    hlo = () if main is None else main.hlo
    if main is None and captured.programs is not None:
        hlo, problems = _programs(captured.programs)
        captured.file_names.in_programs(hlo)
        notes += problems
    if main is None and captured.op_graph is None and not hlo and not (captured.documents or "compile_log" in logs):
        return None
    if process.torch_compilations == 0:
        logs.setdefault("compile_log", CompileLog(path=str(path), rank=process.rank))
    step_times = _note_times(captured)
    recorded = frozenset() if main is None else main.recorded
    recorded |= logs.keys() | captured.documents.keys()
    if hlo:
        recorded |= {"hlo"}
    if captured.op_graph is not None:
        recorded |= {"op_graph"}
    return Trace(
        source=_source(captured, part),
        strings=[] if main is None else main.strings,
        rows={} if main is None else main.rows,
        recorded=recorded,
        detail=captured.timed.get("detail") if "timing" in captured.timed else None,
        op_graph=captured.op_graph,
        step_times_ns=step_times,
        step_tokens=process.untraced_step_tokens if step_times else (),
        step_idle_rows=process.untraced_step_idle_rows if step_times else (),
        window_ns=process.window_ns if process.window_steps > 0 else None,
        window_steps=process.window_steps,
        hlo=hlo,
        held_before=None if main is None else main.held_before,
        allocator_counters=_counters(process),
        loaders=() if main is None else main.loaders,
        core_facts=None if main is None else main.core_facts,
        program_facts=process.facts,
        why_no_step=why_no_step(part.run, process) if captured.op_graph is None and not hlo else None,
        documents=captured.documents,
        **logs,
    )


def _note_times(captured: _Captured) -> tuple[int, ...]:
    """Return step durations without a profiler, if the host's equal those of the work; add notes on all times."""
    main, process, notes = captured.main, captured.process, captured.notes
    if main is not None and "timing" not in captured.timed:
        notes.append("times are from the detail pass (shapes, memory and stacks on) and are too long; no timing pass")
    waits = True
    if any(capture.tool == "jax_profiler" and capture.artifact for capture in process.captures):
        waits = _waits_in_steps(captured.logs.get("host_reads", ()), process)
        notes += _jax_notes(main, process, waits=waits)
    if main is not None:
        compiling_ns = _compiling_ns(main, captured.logs.get("compile_log"))
        notes += _slowdown(main, _free_step_ns(main, process, waits=waits), compiling_ns)
    return process.untraced_step_ns if waits else ()  # Without waiting, a step only takes as long as queueing it.


def _source(captured: _Captured, part: RunPart) -> Source:
    main, notes, timed = captured.main, tuple(captured.notes), captured.timed.values()
    rank, rank_source, world_size = _rank(main, part, captured.process)
    source = Source(
        path=str(captured.folder),
        format=FORMAT,
        rank=rank,
        rank_source=rank_source,
        events_read=sum(trace.source.events_read for trace in timed),
        events_unplaced=sum(trace.source.events_unplaced for trace in timed),
        notes=notes,
        world_size=world_size,
    )
    if main is None:
        return source
    own = main.source
    return msgspec.structs.replace(
        source, unplaced=own.unplaced, repairs=own.repairs, notes=(*notes, *own.notes), backend=own.backend
    )


def _rank(main: Trace | None, part: RunPart, process: Process) -> tuple[int | None, str | None, int | None]:
    """Return (rank, its evidence, world size): the launcher's, else the recording's of a process without a launcher.

    The number of a run's only process, which no launcher set, is not a rank.
    """
    if part.several or (process.world_size or 1) > 1:
        return process.rank, "launcher's environment", process.world_size
    source = None if main is None else main.source
    if source is None or source.rank is None or (source.world_size or 1) < 2:
        return None, None, process.world_size
    return source.rank, source.rank_source, source.world_size


def _counters(process: Process) -> AllocatorCounters | None:
    """Return the allocator's counters before the first and after the last pass, and the steps between."""
    if not process.memory and not process.memory_after:
        return None
    passes = [capture.steps for capture in process.captures if capture.steps is not None]
    steps = max(end for _, end in passes) - min(start for start, _ in passes) if passes else None
    return AllocatorCounters(before=process.memory, after=process.memory_after, steps=steps)


def _device_memory(builder: TraceBuilder, process: Process) -> None:
    """Set the memory of the process's device, if the recording lacks it."""
    devices = builder.rows["devices"]
    reported = process.devices[0].get("memory_bytes") if len(process.devices) == 1 else None
    if isinstance(reported, int) and len(devices) == 1 and devices["memory_bytes"][0] == MISSING:
        builder.rows["devices"] = devices.with_columns({"memory_bytes": reported})


def _waits_in_steps(reads: Sequence[HostRead], process: Process) -> bool:
    """Return whether the program reads results in its steps, so that a host step lasts as long as its work."""
    steps = {read.step for read in reads if read.main_thread and read.step is not None}
    return len(steps) >= WAITING_SHARE * min(process.steps_seen, WATCHED_STEPS)


def _programs(folder: Path) -> tuple[tuple[HloModule, ...], list[str]]:
    """Return the compiled programs in a folder, and the corrupt ones."""
    modules: list[HloModule] = []
    problems = []
    for file in sorted(folder.glob("*.hlo.pb")):
        try:
            modules += proto.read(file).hlo
        except DataError as error:
            problems.append(f"a compiled program is corrupt: {error}")
    return tuple(modules), problems


def _whole_steps(trace: Trace, steps: tuple[int, int] | None) -> Trace:
    """Return the trace without the step that the program's end truncated: its range ends with the recording."""
    if steps is None:
        return trace
    rows = trace.rows["steps"]
    whole = rows.take((rows["number"] >= steps[0]) & (rows["number"] < steps[1]))
    return msgspec.structs.replace(trace, rows={**trace.rows, "steps": whole})
