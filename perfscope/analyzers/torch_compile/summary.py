"""Summary of torch.compile in one process for a report: counts, time, and the state of each frame."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.spans import compiled_rows, nearest_ancestor
from perfscope.analyzers.time import step_windows
from perfscope.analyzers.torch_compile.frames import (
    CompiledFrame,
    compilation_of,
    compile_spans,
    compiled_frames,
    compiles_by_id,
    plain_function,
    resumed_at,
    user_place,
)
from perfscope.model.intervals import intersection_total, union
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.torch_compile.phases import CompileTime, Stage
    from perfscope.model.compile_log import (
        CacheResult,
        CodeLine,
        Compile,
        CompiledKernel,
        CompileLog,
        Direction,
        GraphBreak,
        KernelBackend,
    )

# Measured time of the kernels that inductor generated.


def compiled_kernel_times(trace: Trace) -> Mapping[int, int]:
    """Map index in ``CompileLog.kernels`` to ns in the whole recording, for kernels that ran in it.

    The kernels of a device are summed, whether or not they overlap. On a CPU, the time is the span of a kernel or
    library call.
    """
    rows = trace.fact(compiled_rows)
    if not rows:
        return {}
    slices, kernels = trace.rows["slices"], trace.rows["kernels"]
    spent: dict[int, int] = defaultdict(int)
    if len(kernels):
        joined = np.zeros(len(slices), np.bool_)
        joined[list(rows)] = True
        launching = nearest_ancestor(trace, kernels["op"], joined)
        for row, time in zip(launching.tolist(), (kernels["end_ns"] - kernels["start_ns"]).tolist(), strict=True):
            if row != MISSING:
                spent[rows[row]] += time
        return spent
    for row, index in rows.items():
        spent[index] += int(slices["end_ns"][row] - slices["start_ns"][row])
    return spent


# Graph breaks, recompiles and kernels of a log of torch.compile as rows: each record is in exactly one row.


MOST_VALUES = 12
"""Maximum number of a guard's values that are kept: a dozen show whether they grow or repeat."""


class BreakSummary(Struct, frozen=True, kw_only=True):
    """Graph breaks of one reason at one line."""

    place: CodeLine | None
    """The line that ends the graph."""
    reason: str
    """In torch's words."""
    doc_id: str | None
    """torch's stable id of this kind of break."""
    count: int
    """Number of records; an inlined function has a record for each frame that contains it."""
    whole_frame: bool
    """Whether it left the whole frame in eager mode."""
    hint: str | None
    """torch's first hint."""


class RecompileSummary(Struct, frozen=True, kw_only=True):
    """Recompilations of one frame with the same subject of the guard."""

    function: str
    """The frame."""
    place: CodeLine | None
    """Its line."""
    guard: str
    """The guard that failed first, in torch's words."""
    guard_place: CodeLine | None
    """Line that required it."""
    values: tuple[str, ...]
    """Values in the guard, in order, without repeats; at most ``MOST_VALUES``."""
    count: int
    """Recompilations."""
    cause: str = ""
    """Sentence on the change between the calls; empty if the log has no guard."""
    fix: str = ""
    """Advice that avoids these recompilations."""
    time_ns: int | None = None
    """Time of these recompilations, moments once; ``None`` if unknown."""


class KernelSummary(Struct, frozen=True, kw_only=True):
    """Kernels or library calls of one name."""

    name: str
    """As in the trace."""
    backend: KernelBackend
    """Its generator: inductor's Triton or C++ code, a library, or another."""
    calls: int
    """Calls in the output code of all graphs."""
    ops: tuple[str, ...]
    """ATen ops it computes; at most 12."""
    places: tuple[CodeLine, ...]
    """Lines it computes; at most 4."""
    time_ns: int | None = None
    """Time in the whole recording; ``None`` if it did not run in it or is unknown."""


def leaves_frame(trace: Trace, graph_break: GraphBreak) -> bool:
    """Whether a break left its whole frame in eager mode.

    Older versions of torch record that only for the compilation.
    """
    holder = compilation_of(trace, graph_break.compile_id, graph_break.time_ns)
    return graph_break.skipped_frame or (holder is not None and holder.has_code is False)


def break_rows(trace: Trace, log: CompileLog) -> tuple[BreakSummary, ...]:
    """Return rows by line and reason; breaks that left a whole frame in eager mode first, then the most frequent."""
    groups: dict[tuple[object, ...], list[tuple[GraphBreak, CodeLine | None]]] = defaultdict(list)
    for graph_break in log.breaks:
        code_line = user_place(graph_break.place, graph_break.stack)
        key = (
            code_line and (code_line.file, code_line.line),
            graph_break.reason,
            graph_break.doc_id,
            leaves_frame(trace, graph_break),
        )
        groups[key].append((graph_break, code_line))
    rows = [
        BreakSummary(
            place=held[0][1],
            reason=held[0][0].reason,
            doc_id=held[0][0].doc_id,
            count=len(held),
            whole_frame=bool(key[-1]),
            hint=next((graph_break.hints[0] for graph_break, _ in held if graph_break.hints), None),
        )
        for key, held in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (not row.whole_frame, -row.count)))


def recompile_rows(trace: Trace, log: CompileLog) -> tuple[RecompileSummary, ...]:
    """Return rows by frame and subject of the guard, with its values in order."""
    from perfscope.analyzers.torch_compile.guards import fix_of, parse_guard

    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    guards = [parse_guard(recompile.reasons[0]) if recompile.reasons else None for recompile in log.recompiles]
    stacks = {compilation.compile_id: compilation.stack for compilation in log.compiles}
    for index, (recompile, guard) in enumerate(zip(log.recompiles, guards, strict=True)):
        about = None if guard is None else guard.text if guard.source is None else guard.key
        groups[recompile.function, recompile.place and (recompile.place.file, recompile.place.line), about].append(
            index
        )
    rows = []
    for members in groups.values():
        first = log.recompiles[members[0]]
        failed_guards = [guard for index in members if (guard := guards[index]) is not None]
        values = [value for guard in failed_guards for value in (guard.expected, guard.actual) if value is not None]
        compiles = [
            compilation
            for index in members
            if (compilation := compilation_of(trace, log.recompiles[index].compile_id, log.recompiles[index].time_ns))
        ]
        rows.append(
            RecompileSummary(
                function=plain_function(first.function),
                place=user_place(first.place, stacks.get(first.compile_id, ())),
                guard=failed_guards[0].text if failed_guards else "the log has no guard",
                guard_place=next(
                    (log.recompiles[i].guard_place for i in members if log.recompiles[i].guard_place), None
                ),
                values=tuple(dict.fromkeys(values))[:MOST_VALUES],
                count=len(members),
                cause=failed_guards[0].changes() if failed_guards else "",
                fix=fix_of(failed_guards[0]) if failed_guards else "",
                time_ns=compile_spans(trace, compiles).total() or None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.count))


def kernel_rows(kernels: Sequence[CompiledKernel], times_ns: Mapping[int, int]) -> tuple[KernelSummary, ...]:
    """Return rows by name; most measured time first, followed by generated kernels with the most ops.

    ``times_ns``: by index in ``kernels``.
    """
    groups: dict[tuple[str, KernelBackend], list[int]] = defaultdict(list)
    for index, kernel in enumerate(kernels):
        groups[kernel.name, kernel.backend].append(index)
    rows = []
    for (name, backend), members in groups.items():
        compiled_kernels = [kernels[index] for index in members]
        rows.append(
            KernelSummary(
                name=name,
                backend=backend,
                calls=sum(kernel.calls for kernel in compiled_kernels),
                ops=tuple(dict.fromkeys(op for kernel in compiled_kernels for op in kernel.ops)),
                places=tuple(dict.fromkeys(code_line for kernel in compiled_kernels for code_line in kernel.places)),
                time_ns=sum(times_ns.get(index, 0) for index in members)
                if any(index in times_ns for index in members)
                else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-(row.time_ns or 0), row.backend == "extern", -len(row.ops), row.name)))


FrameState = Literal["compiled", "eager", "partly eager", "recompile limit", "nothing to compile", "unfinished"]
"""``eager``: the whole frame runs in eager mode; ``partly eager``: earlier compilations are used if their guards hold;
``nothing to compile``: it has no ops; ``unfinished``: the log ends before its compilation.
"""


class GraphGroup(Struct, frozen=True, kw_only=True):
    """Graphs of one frame and one direction."""

    direction: Direction
    count: int
    """Graphs."""
    ops_least: int
    """Ops of the smallest."""
    ops_most: int
    """Ops of the largest graph; after inductor's passes if the log has them."""


class FrameSummary(Struct, frozen=True, kw_only=True):
    """One code object: a function, or its continuation after a graph break."""

    function: str
    """Name of the function in the program."""
    after_line: int | None
    """Line of the graph break that it continues after."""
    place: CodeLine | None
    """Its first line, or the user's line that called it."""
    compiles: int
    """How often it was compiled."""
    restarts: int
    """Attempts of each compilation beyond the first."""
    graphs: tuple[GraphGroup, ...]
    """Graphs by direction."""
    dynamo_graphs: int
    """Graphs that dynamo passed to the backend; with inductor, their results are in ``graphs``."""
    breaks: int
    """Graph breaks in it."""
    recompiles: int
    """Recompilations of it."""
    caches: Mapping[str, Mapping[CacheResult, int]]
    """Lookups by cache (fx_graph, aotautograd) and result; a forward's and a backward's together."""
    cache_reasons: tuple[str, ...]
    """Why a cache was bypassed, or what differed, in torch's words."""
    time_ns: int
    """Time of compiling it, its backward included."""
    stages_ns: Mapping[Stage, int]
    """Exclusive times; they sum to ``time_ns`` if the log has phases, else empty."""
    state: FrameState
    """Its state after all compilations."""


class CompileSummary(Struct, frozen=True, kw_only=True):
    """Summary of one process."""

    rank: int | None
    path: str
    """The log."""
    torch_version: str | None
    """Name in the log."""
    compiles: int
    """Compilations."""
    graphs: int
    """Graphs that inductor compiled; dynamo's graphs without any."""
    graph_kind: Literal["inductor", "dynamo"]
    """Whose graphs those are."""
    breaks: int
    """Breaks that left the rest of their frame compiled."""
    eager_frames: int
    """Frames in eager mode, entirely or from some time on, except those at the limit."""
    limit_frames: int
    recompiles: int
    caches: Mapping[str, Mapping[CacheResult, int]]
    total_ns: int
    """Time in which anything was compiled, moments once."""
    in_steps_ns: int | None
    """Part inside the recorded steps; ``None`` without steps."""
    stages_ns: Mapping[Stage, int]
    """Exclusive time by stage of the compiler: tracing, start, aot, lowering, code, kernels, tuning, caches,
    cuda_graphs, other. The stages sum to ``total_ns``; empty where the log has no phases."""
    frames: tuple[FrameSummary, ...]
    """Longest compile time first."""
    break_rows: tuple[BreakSummary, ...]
    """Graph breaks by line and reason; with what is left out their counts are all breaks of the log."""
    recompile_rows: tuple[RecompileSummary, ...]
    """Recompilations by frame and by what the guard is about; the same holds for their counts."""
    kernels: tuple[KernelSummary, ...]
    """Kernels of inductor by name: most measured time first, then most ops."""
    unowned_ns: int = 0
    """Compile time without a frame in the log."""
    corrupt: int = 0
    """Damaged records of the log, left out."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Records of kinds that are not known here."""


def compile_summary(trace: Trace) -> CompileSummary | None:
    """Return the summary of a trace's log; ``None`` without a log or without compilations."""
    from perfscope.analyzers.torch_compile.phases import compile_times

    log = trace.compile_log
    if log is None or not (log.compiles or log.breaks):
        return None
    times = trace.fact(compile_times)
    frames = _frames(trace, log)
    rows, steps = break_rows(trace, log), trace.fact(step_windows)
    return CompileSummary(
        rank=trace.source.rank if trace.source.rank is not None else log.rank,
        path=log.path,
        torch_version=log.torch_version,
        compiles=len(log.compiles),
        graphs=len(log.graphs) or sum(frame.dynamo_graphs for frame in frames),
        graph_kind="inductor" if log.graphs else "dynamo",
        breaks=sum(row.count for row in rows if not row.whole_frame),
        eager_frames=sum(frame.state in ("eager", "partly eager") for frame in frames),
        limit_frames=sum(frame.state == "recompile limit" for frame in frames),
        recompiles=len(log.recompiles),
        caches=_caches(log.compiles),
        total_ns=times.total_ns,
        in_steps_ns=intersection_total(compile_spans(trace, log.compiles), union(steps.starts, steps.ends))
        if steps.count
        else None,
        stages_ns=times.stages_ns,
        frames=frames,
        break_rows=rows,
        recompile_rows=recompile_rows(trace, log),
        kernels=kernel_rows(log.kernels, trace.fact(compiled_kernel_times)),
        unowned_ns=times.total_ns - sum(frame.time_ns for frame in frames),
        corrupt=log.corrupt,
        unknown=log.unknown,
    )


def _graphs(trace: Trace, log: CompileLog) -> dict[int, list[tuple[Direction, int]]]:
    """Map ``id()`` of a compilation to (direction, ops) of its graphs.

    Graphs have no time. If an id was reused, each further graph other than a backward belongs to the next compilation
    that traced one.
    """
    turns = {
        name: [compilation for compilation in held if compilation.traced_graphs] or held
        for name, held in trace.fact(compiles_by_id).items()
    }
    begun: Counter[str] = Counter()
    result: dict[int, list[tuple[Direction, int]]] = defaultdict(list)
    for graph in log.graphs:
        compiles = turns.get(graph.compile_id)
        if not compiles:
            continue
        begun[graph.compile_id] += graph.direction != "backward"
        turn = min(max(begun[graph.compile_id], 1), len(compiles)) - 1
        result[id(compiles[turn])].append((graph.direction, len(graph.nodes)))
    return result


def _frames(trace: Trace, log: CompileLog) -> tuple[FrameSummary, ...]:
    """Return one row per code object, including renumbered ones."""
    from perfscope.analyzers.torch_compile.phases import compile_times

    whole = trace.fact(compile_times)
    times = {id(compile_time.compile): compile_time for compile_time in whole.compiles}
    graphs = _graphs(trace, log)
    broken, left = Counter[int](), set[int]()
    for graph_break in log.breaks:
        holder = id(compilation_of(trace, graph_break.compile_id, graph_break.time_ns))
        if leaves_frame(trace, graph_break):
            left.add(holder)
        else:
            broken[holder] += 1
    groups: dict[object, list[CompiledFrame]] = defaultdict(list)
    for frame in trace.fact(compiled_frames):
        first = frame.compiles[0]
        key = (first.function, first.place.file, first.place.line) if first.place is not None else id(frame)
        groups[key].append(frame)
    rows = []
    for group in groups.values():
        compiles = [compilation for frame in group for compilation in frame.compiles]
        mine = [pair for compilation in compiles for pair in graphs.get(id(compilation), ())]
        breaks = sum(broken[id(compilation)] for compilation in compiles)
        given_up = any(id(compilation) in left for compilation in compiles)
        rows.append(_frame(group, times, mine, breaks, given_up=given_up, parted=bool(whole.stages_ns)))
    return tuple(sorted(rows, key=lambda row: -row.time_ns))


def _frame(
    held: Sequence[CompiledFrame],
    times: Mapping[int, CompileTime],
    graphs: Sequence[tuple[Direction, int]],
    breaks: int,
    *,
    given_up: bool,
    parted: bool,
) -> FrameSummary:
    """Return the row of a frame. ``given_up``: dynamo left it in eager mode according to a record.

    ``parted``: the log has phases, so a compilation without phases took no time.
    """
    compiles = [compilation for frame in held for compilation in frame.compiles]
    stages: Counter[Stage] = Counter()
    for compilation in compiles:
        stages.update(times[id(compilation)].stages_ns)
    name = next((compilation.function for compilation in compiles if compilation.function), None)
    resumed = resumed_at(name)
    directions: tuple[Direction, ...] = ("forward", "backward", "inference")
    return FrameSummary(
        function=plain_function(name),
        after_line=None if resumed is None else resumed[1],
        place=held[0].user_place,
        compiles=len(compiles),
        restarts=sum(compilation.attempts - 1 for compilation in compiles),
        graphs=tuple(
            GraphGroup(direction=direction, count=len(ops), ops_least=min(ops), ops_most=max(ops))
            for direction in directions
            if (ops := [count for where, count in graphs if where == direction])
        ),
        dynamo_graphs=sum(compilation.traced_graphs for compilation in compiles),
        breaks=breaks,
        recompiles=sum(len(frame.recompiles) for frame in held),
        caches=_caches(compiles),
        cache_reasons=tuple(
            dict.fromkeys(reason for compilation in compiles for reason in compilation.cache_reasons.values())
        ),
        time_ns=sum(
            times[id(compilation)].total_ns
            for compilation in compiles
            if parted == bool(times[id(compilation)].stages_ns)
        ),
        stages_ns=dict(stages.most_common()),
        state=_state(held, compiles, any_graph=bool(graphs), given_up=given_up),
    )


def _state(
    held: Sequence[CompiledFrame], compiles: Sequence[Compile], *, any_graph: bool, given_up: bool
) -> FrameState:
    """Return the state.

    A frame without code and without a record has nothing to compile, unless it was compiled before.
    """
    if any(frame.limit is not None for frame in held):
        return "recompile limit"
    worked = any_graph or any(
        compilation.traced_graphs and compilation.has_code is not False for compilation in compiles
    )
    if given_up or any(map(_failed, held)) or any(frame.skips for frame in held):
        return "partly eager" if worked else "eager"
    if any(not compilation.complete for compilation in compiles):
        return "unfinished"
    return "compiled" if worked else "nothing to compile"


def _failed(frame: CompiledFrame) -> bool:
    """Whether a compilation failed according to the log, or produced no code although earlier ones had graphs."""
    worked = any(compilation.traced_graphs for compilation in frame.compiles)
    return any(
        compilation.complete and compilation.has_code is False and (worked or compilation.fail_type)
        for compilation in frame.compiles
    )


def _caches(compiles: Iterable[Compile]) -> dict[str, dict[CacheResult, int]]:
    """Count by cache and result; lookups by forward and backward in one cache are added."""
    found: dict[str, dict[CacheResult, int]] = {}
    for compilation in compiles:
        for cache, result in compilation.caches.items():
            counts = found.setdefault(cache.removesuffix("_backward"), {})
            counts[result] = counts.get(result, 0) + 1
    return found
