"""Measures of a recording or program that need no clock: counts and bytes, with their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.compare.runs.keys import instruction_keys, plain_span
from perfscope.analyzers.compare.runs.window import Window, compared_window, inside, work_in_window
from perfscope.analyzers.memory import trace_memories
from perfscope.analyzers.plans import step_bytes
from perfscope.analyzers.spans import nearest_ancestor
from perfscope.analyzers.time import blocking_calls, call_site
from perfscope.analyzers.torch_compile import compile_summary
from perfscope.model.compile_log import CodeLine
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import MISSING, CallKind, SliceKind, Trace

MOST_PLACES_LOOKED_UP = 2_000
"""Maximum number of syncs whose line is looked up; a program with more repeats a few lines in each step."""


class Measure(Struct, frozen=True, kw_only=True):
    """Number that does not depend on chance."""

    name: str
    """Name with its reference: ``host syncs per step``."""
    unit: str
    """``count``, ``bytes`` or ``FLOP``."""
    value: float
    places: Mapping[str, float] = field(default_factory=dict)
    """``file:line`` or op -> its part of the value, as far as known."""
    remarks: tuple[str, ...] = ()
    neutral: bool = False
    """Whether more is neither better nor worse: a program that is compiled has more compiled graphs."""
    least: float = 0.0
    """Smallest relative change that matters, in addition to the limit of its unit."""
    per_trace: bool = False
    """Whether it grows with the length of the recording, because steps are unknown."""


_ALONE = frozenset({"torch_plan", "hlo", "memory_state", "compile_log", "flight_record", "op_graph", "memory"})
"""Kinds of data that may occur alone, without a recording of a run."""

LEAST_OF_PROGRAM = 0.01
"""Smallest relative change of instructions and FLOPs of compiled programs. XLA compiles unrelated code into a few more
or fewer, and 1% of either makes no step 2% slower. A lost fusion moves bytes, which are compared to 0.1%."""

COMPILED_GRAPHS = "compiled graphs"
COMPILED_KERNELS = "kernels of compiled graphs"
"""By line: the number of kernels that compute part of it, so a kernel that was split into three counts three times."""
COMPILED_LIBRARY_CALLS = "library calls of compiled graphs"

GRAPH_NEEDS = "no op graph (structure pass of `perfscope run`)"
LOG_NEEDS = "no log of torch.compile"
JAX_NEEDS = "no log of jax (`perfscope run`)"
DEVICE_NEEDS = "no device work recorded"
CALLS_NEEDS = "runtime calls not recorded"
WAITS_NEEDS = "the profiler recorded launches, no waits"
MEMORY_NEEDS = "no memory recorded"


class Measured(Struct, frozen=True, kw_only=True):
    """All measures of a trace by name, and reasons for missing ones."""

    found: Mapping[str, Measure]
    blind: Mapping[str, str]
    """Name -> what was not recorded."""


def measures(trace: Trace) -> Measured:
    """Return counts and bytes of one trace, per step if steps are known."""
    result: list[Measure] = []
    blind: dict[str, str] = {}
    window = trace.fact(compared_window)
    framework = (_jax,) if _is_jax(trace) else (_graph, _compile)
    parts = (_device_work, *framework, _memory)
    if not trace.recorded - _ALONE:  # a program, a snapshot or a log, and no recording
        parts = (_graph,) * ("op_graph" in trace.recorded and not trace.torch_plans) + (_compile,) * (
            "compile_log" in trace.recorded
        )
        parts += (_memory,) * (not {"hlo", "torch_plan"} & trace.recorded)
    for part in parts:
        for measured in part(trace, window):
            if isinstance(measured, Measure):
                result.append(measured)
            else:
                blind[measured[0]] = measured[1]
    return Measured(found={measure.name: measure for measure in result}, blind=blind)


def _is_jax(trace: Trace) -> bool:
    """Return whether the program uses JAX, so that torch's logs cannot exist."""
    return bool({"hlo", "compile_events", "host_reads"} & trace.recorded) or len(trace.rows["hlo_ops"]) > 0


_Yielded = Iterator[Measure | tuple[str, str]]


def _device_work(trace: Trace, window: Window) -> _Yielded:
    per, whole = f"per {window.per}", window.per == "trace"
    names = (f"kernels {per}", f"copies {per}", f"launches {per}", f"host syncs {per}")
    if "device_work" not in trace.recorded:
        yield from ((name, DEVICE_NEEDS) for name in names)
        return
    calls = trace.rows["calls"]
    for name, table in zip(names[:2], ("kernels", "copies"), strict=True):
        counted = int(work_in_window(trace, table, window).sum())
        yield Measure(name=name, unit="count", value=counted / window.steps, per_trace=whole)
    if "runtime_calls" not in trace.recorded:
        yield from ((name, CALLS_NEEDS) for name in names[2:])
        return
    launching = np.isin(calls["kind"], [CallKind.KERNEL, CallKind.GRAPH])
    began = window.began_inside(calls["start_ns"])
    yield Measure(name=names[2], unit="count", value=int((launching & began).sum()) / window.steps, per_trace=whole)
    if "waiting_calls" not in trace.recorded:
        yield names[3], WAITS_NEEDS
        return
    rows = trace.fact(blocking_calls)
    rows = rows[began[rows]]
    places = Counter(_place_of_call(trace, int(row)) for row in rows[:MOST_PLACES_LOOKED_UP])
    shares = {location: count / window.steps for location, count in places.items()}
    yield Measure(name=names[3], unit="count", value=len(rows) / window.steps, places=shares, per_trace=whole)


def host_ops(trace: Trace) -> Mapping[str, float] | None:
    """Return calls per step of host ops and annotations by name; ``None`` if none was recorded."""
    if "host_ops" not in trace.recorded:
        return None
    window, slices = trace.fact(compared_window), trace.rows["slices"]
    counted = np.isin(slices["kind"], (SliceKind.OP, SliceKind.ANNOTATION)) & window.began_inside(slices["start_ns"])
    codes, numbers = np.unique(slices["name"][counted], return_counts=True)
    calls: Counter[str] = Counter()
    for code, number in zip(codes.tolist(), numbers.tolist(), strict=True):
        calls[plain_span(trace.text(code))] += number
    return {name: number / window.steps for name, number in calls.items()}


def _place_of_call(trace: Trace, row: int) -> str:
    calls, slices = trace.rows["calls"], trace.rows["slices"]
    parent = int(calls["parent"][row])
    site = call_site(trace, parent)
    if site.file is not None:
        return site.where().label()
    op = int(nearest_ancestor(trace, [parent], slices["kind"] == SliceKind.OP)[0])
    return trace.text(int(slices["name"][op])) if op != MISSING else trace.text(int(calls["name"][row]))


def _graph(trace: Trace, _: Window) -> _Yielded:
    names = (
        "reads by the host per step (structure)", "recomputed ops per step", "FLOPs per step", "bytes of ops per step",
    )  # fmt: skip
    graph = trace.op_graph
    if graph is None:
        yield from ((name, GRAPH_NEEDS) for name in (*names, "ops per step"))
        return
    cut = ("the graph is cut at its op limit",) if graph.truncated else ()
    yield _of_ops(names[0], [op for op in graph.ops if op.host_read is not None], cut)
    yield _of_ops(names[1], [op for op in graph.ops if op.recompute], cut)
    yield _flops(graph, names[2], cut)
    yield Measure(name=names[3], unit="bytes", value=trace.fact(step_bytes), remarks=cut)
    yield _of_ops("ops per step", [op for op in graph.ops if not op.view], cut)


def _of_ops(name: str, ops: list[GraphOp], remarks: tuple[str, ...]) -> Measure:
    places = Counter(f"{op.file}:{op.line}" for op in ops if op.file is not None)
    return Measure(name=name, unit="count", value=len(ops), places=dict(places), remarks=remarks)


def _flops(graph: OpGraph, name: str, remarks: tuple[str, ...]) -> Measure:
    places: dict[str, float] = {}
    for op in graph.ops:
        if op.flops and op.file is not None:
            location = f"{op.file}:{op.line}"
            places[location] = places.get(location, 0) + op.flops
    total = sum(op.flops or 0 for op in graph.ops)
    return Measure(name=name, unit="FLOP", value=total, places=places, remarks=remarks)


def _compile(trace: Trace, _: Window) -> _Yielded:
    names = (
        "graph breaks", "recompilations (torch.compile)", COMPILED_GRAPHS, COMPILED_KERNELS, COMPILED_LIBRARY_CALLS,
    )  # fmt: skip
    if "compile_log" not in trace.recorded:
        yield from ((name, LOG_NEEDS) for name in names)
        return
    summary = trace.fact(compile_summary)
    if summary is None or trace.compile_log is None:
        yield from (Measure(name=name, unit="count", value=0, neutral=name in names[2:]) for name in names)
        return
    log = trace.compile_log
    again = Counter(_line(recompile.guard_place or recompile.place) for recompile in log.recompiles)
    # A break at the head of a recompiled frame is the recompilation limit; the cause is the reason for recompiling.
    guards = {
        _line(recompile.place): _line(recompile.guard_place)
        for recompile in log.recompiles
        if recompile.guard_place is not None
    }
    breaks = Counter(guards.get(_line(graph_break.place), _line(graph_break.place)) for graph_break in log.breaks)
    yield Measure(name=names[0], unit="count", value=len(log.breaks), places=_known(breaks))
    yield Measure(name=names[1], unit="count", value=len(log.recompiles), places=_known(again))
    yield Measure(name=names[2], unit="count", value=summary.graphs, neutral=True)
    generated, library = (
        [kernel for kernel in log.kernels if (kernel.backend == "extern") is is_one] for is_one in (False, True)
    )
    if generated or log.has_provenance:
        for name, kernels in ((names[3], generated), (names[4], library)):
            kernels_by_line = Counter(
                line for kernel in kernels for line in {_line(code_line) for code_line in kernel.places}
            )
            calls = sum(kernel.calls for kernel in kernels)
            yield Measure(name=name, unit="count", value=calls, places=_known(kernels_by_line), neutral=True)
    else:
        yield from ((name, "the log does not say what inductor's kernels compute") for name in names[3:])


def _line(code_line: CodeLine | None) -> str:
    return "" if code_line is None else f"{code_line.file}:{code_line.line}"


def _known(places: Counter[str]) -> dict[str, float]:
    return {location: count for location, count in places.items() if location}


def _jax(trace: Trace, window: Window) -> _Yielded:
    names = ("functions traced again per step (jax)", "reads by the host per step (jax)")
    wanted = (("compile_events", names[0]), ("host_reads", names[1]))
    for key, name in wanted:
        if key not in trace.recorded:
            yield name, JAX_NEEDS
    yield from _instructions(trace, window)
    steps = max(len(trace.step_times_ns), trace.window_steps) + trace.fact(compared_window).steps
    if "compile_events" in trace.recorded:
        again = [event for event in trace.compile_events if event.kind == "retrace" and event.step is not None]
        places = Counter(f"{event.file}:{event.line}" for event in again if event.file is not None)
        yield _over_steps(names[0], [event.step for event in again], places, steps)
    if "host_reads" in trace.recorded:
        reads = [read for read in trace.host_reads if read.main_thread and read.step is not None]
        places = Counter(f"{read.file}:{read.line}" for read in reads if read.file is not None)
        yield _over_steps(names[1], [read.step for read in reads], places, steps)


def _instructions(trace: Trace, window: Window) -> _Yielded:
    """Count instructions of all programs that the host runs; device kernels are counted elsewhere."""
    name = f"instructions run per {window.per}"
    ops = trace.rows["hlo_ops"]
    if "device_work" in trace.recorded:
        return
    if not len(ops):
        yield name, "no compiled instructions in the recording"
        return
    rows = np.flatnonzero(inside(window.spans, ops["start_ns"]) & ~ops["encloses"])
    places = Counter(key.place() for key in instruction_keys(trace, rows) if key.file)
    yield Measure(
        name=name,
        unit="count",
        value=len(rows) / window.steps,
        places={location: count / window.steps for location, count in places.items()},
        least=LEAST_OF_PROGRAM,
        per_trace=window.per == "trace",
    )


def _over_steps(name: str, steps: list[int | None], places: Counter[str], most: int) -> Measure:
    """Divide by the steps from the first to the last with a count, at least by the number of timed steps."""
    seen = [step for step in steps if step is not None]
    over = max(max(seen) - min(seen) + 1, most) if seen else 1
    return Measure(
        name=name,
        unit="count",
        value=len(steps) / over,
        places={location: count / over for location, count in places.items()},
    )


def _memory(trace: Trace, _: Window) -> _Yielded:
    memories = trace.fact(trace_memories).memories
    if not memories:
        yield "peak memory", MEMORY_NEEDS
    for memory in memories:
        if memory.space == "program":  # programs are compared as programs
            continue
        name = f"peak memory ({memory.label}{', as the driver saw it' if memory.of_driver else ''})"
        places: dict[str, float] = {}
        for row in memory.by_line.rows:
            if row.line is not None:
                location = f"{row.line.file}:{row.line.line}"
                places[location] = places.get(location, 0.0) + row.bytes
        yield Measure(name=name, unit="bytes", value=memory.peak_bytes, places=places)
        if memory.reserved is not None:
            yield Measure(name=name.replace("peak", "reserved"), unit="bytes", value=memory.reserved.peak_bytes)
