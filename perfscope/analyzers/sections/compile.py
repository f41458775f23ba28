"""Compilations of torch.compile in all ranks and of JAX, as bounded sections; a failure does not affect the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.sections import guarded
from perfscope.analyzers.torch_compile import CompileSummary, compile_ns, compile_summary, compiled_functions
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.model.compile_log import CacheResult, CompileLog

MOST_ROWS = 20
"""Most frames, lines, guards and kernels of a section: those beyond the twentieth are rare or short."""

MOST_OPS = 12
"""Most ATen ops of a kernel; a fused kernel of a deep model may have dozens."""

MOST_PLACES = 4
"""Lines of a kernel."""


MOST_EXECUTED = 1_000
"""Most graph calls of a rank."""


class RankCompile(Struct, frozen=True, kw_only=True):
    """Counts of one rank."""

    label: str
    """``rank 3``, or ``source 0`` if the rank is unknown."""
    rank: int | None
    """Rank in the job, null if unknown."""
    frames: int
    """Code objects that dynamo looked at."""
    compiles: int
    """Compilations of them."""
    graphs: int
    """Graphs that inductor compiled; those of dynamo where it compiled none."""
    breaks: int
    """Graph breaks that left the rest of their frame compiled, as often as they were logged."""
    recompiles: int
    """Recompilations."""
    eager_frames: int
    """Frames in eager mode, as a whole or from some moment on; the limit aside."""
    limit_frames: int
    """Frames that reached the limit of recompilations."""
    total_ns: int
    """Time in which anything was compiled, moments once."""
    in_steps_ns: int | None
    """Part of it inside the traced steps, ns; null if none were traced."""
    caches: Mapping[str, Mapping[CacheResult, int]] = field(default_factory=dict)
    """Lookups by cache (fx_graph, aotautograd) and result; a forward's and a backward's together."""
    schedules: tuple[tuple[str, ...], ...] = ()
    """By compilation the collectives in the order of their calls, if inductor logged them."""
    estimated_ns: float | None = None
    """Time of all graphs, each called once, by inductor's own model."""
    tensors: tuple[str, ...] = ()
    """By compilation a hash of what its calls return: shapes, strides and dtypes."""
    executed: tuple[str, ...] = ()
    """Compile ids of its graphs in the order in which they ran, the first ones, if recorded."""

    def counts(self) -> tuple[int, ...]:
        """Counts that are equal for ranks of one job that compile the same."""
        return (
            self.frames, self.compiles, self.graphs, self.breaks, self.recompiles, self.eager_frames, self.limit_frames,
        )  # fmt: skip


class JaxFunction(Struct, frozen=True, kw_only=True):
    """Compilations of one function, or of one op that JAX runs by itself. Times in ns; overlaps count once."""

    name: str
    """The function that was jitted, or an operation that jax ran by itself."""
    file: str | None
    """File of the user's line that called it first."""
    line: int | None
    """That line."""
    compilations: int
    """How often it was compiled."""
    trace_ns: int
    """Time of tracing."""
    lower_ns: int
    """Time of lowering to StableHLO."""
    compile_ns: int
    """In XLA."""
    total_ns: int
    """All of it, moments once."""


class JaxCompile(Struct, frozen=True, kw_only=True):
    """Compilations of JAX in the whole run, in the process that compiled longest."""

    total_ns: int
    """Overlaps count once: a function may be traced inside another."""
    programs: int
    """Programs that were compiled."""
    functions: tuple[JaxFunction, ...]
    """Functions, longest first."""
    left: int
    """Functions that are not listed."""


class CompileSection(Struct, frozen=True, kw_only=True):
    """Ranks compared, and the compilations of the rank that compiled longest; bounded, the rest is counted."""

    ranks: tuple[RankCompile, ...] = ()
    """Counts of each rank in which torch.compile compiled anything."""
    detail: CompileSummary | None = None
    """Compilations of the rank that compiled longest. ``None``: nothing was compiled."""
    detail_label: str = ""
    left: Mapping[str, int] = field(default_factory=dict)
    """Rows that are not in the lists of ``detail``, by list: ``frames``, ``breaks``, ``recompiles``, ``kernels``."""
    left_records: Mapping[str, int] = field(default_factory=dict)
    """Breaks and recompilations in those rows."""
    problems: tuple[str, ...] = ()
    """Why a trace's compilations are missing."""
    jax: JaxCompile | None = None
    """``None``: no compilation of JAX was logged."""


NO_COMPILE = CompileSection()


def compile_section(traces: Sequence[Trace]) -> CompileSection:
    """The section of all traces; a trace whose log causes an error is named in ``problems``."""
    result: list[tuple[str, CompileSummary]] = []
    problems: list[str] = []
    logs: dict[str, CompileLog | None] = {}
    for index, trace in enumerate(traces):
        with guarded("what torch.compile did could not be summed up", trace.source.path, problems):
            summary = trace.fact(compile_summary)
            if summary is not None:
                label = f"source {index}" if summary.rank is None else f"rank {summary.rank}"
                result.append((label, summary))
                logs[label] = trace.compile_log
    jax = max(filter(None, map(_jax, traces)), key=lambda one: one.total_ns, default=None)
    if not result:
        return replace(NO_COMPILE, problems=tuple(problems), jax=jax)
    label, longest = max(result, key=lambda pair: pair[1].total_ns)
    detail, left, records = _bounded(longest)
    return CompileSection(
        ranks=tuple(_rank(label, summary, logs[label]) for label, summary in result),
        detail=detail,
        detail_label=label,
        left=left,
        left_records=records,
        problems=tuple(problems),
        jax=jax,
    )


def _jax(trace: Trace) -> JaxCompile | None:
    if not trace.compile_events:
        return None
    functions = trace.fact(compiled_functions)
    return JaxCompile(
        total_ns=compile_ns(trace),
        programs=sum(len(one.compilations) for one in functions),
        functions=tuple(
            JaxFunction(
                name=one.name,
                file=one.compilations[0].file,
                line=one.compilations[0].line,
                compilations=len(one.compilations),
                trace_ns=sum(row.trace_ns for row in one.compilations),
                lower_ns=sum(row.lower_ns for row in one.compilations),
                compile_ns=sum(row.compile_ns for row in one.compilations),
                total_ns=one.spans.total(),
            )
            for one in functions[:MOST_ROWS]
        ),
        left=max(0, len(functions) - MOST_ROWS),
    )


def _rank(label: str, summary: CompileSummary, log: CompileLog | None) -> RankCompile:
    compiles = () if log is None else log.compiles
    estimates = [compilation.estimated_ns for compilation in compiles if compilation.estimated_ns is not None]
    return RankCompile(
        label=label,
        rank=summary.rank,
        frames=len(summary.frames),
        compiles=summary.compiles,
        graphs=summary.graphs,
        breaks=summary.breaks,
        recompiles=summary.recompiles,
        eager_frames=summary.eager_frames,
        limit_frames=summary.limit_frames,
        total_ns=summary.total_ns,
        in_steps_ns=summary.in_steps_ns,
        caches=summary.caches,
        schedules=tuple(compilation.schedule for compilation in compiles if compilation.schedule)[:MOST_ROWS],
        estimated_ns=sum(estimates) if estimates else None,
        tensors=tuple(compilation.tensors for compilation in compiles if compilation.tensors)[:MOST_ROWS],
        executed=() if log is None else log.executed[:MOST_EXECUTED],
    )


def _bounded(summary: CompileSummary) -> tuple[CompileSummary, dict[str, int], dict[str, int]]:
    lists = {
        "frames": summary.frames, "breaks": summary.break_rows, "recompiles": summary.recompile_rows,
        "kernels": summary.kernels,
    }  # fmt: skip
    left = {name: len(rows) - MOST_ROWS for name, rows in lists.items() if len(rows) > MOST_ROWS}
    records = {
        "breaks": sum(row.count for row in summary.break_rows[MOST_ROWS:]),
        "recompiles": sum(row.count for row in summary.recompile_rows[MOST_ROWS:]),
    }
    kernels = [
        replace(kernel, ops=kernel.ops[:MOST_OPS], places=kernel.places[:MOST_PLACES])
        for kernel in summary.kernels[:MOST_ROWS]
    ]
    kept = replace(
        summary,
        frames=summary.frames[:MOST_ROWS],
        break_rows=summary.break_rows[:MOST_ROWS],
        recompile_rows=summary.recompile_rows[:MOST_ROWS],
        kernels=tuple(kernels),
    )
    return kept, left, {name: count for name, count in records.items() if count}
