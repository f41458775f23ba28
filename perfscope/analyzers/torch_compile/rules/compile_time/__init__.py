"""Compilation delays the program by a time that a cache or another form of the program would save.

Example:
    Before::

        for layer in layers:              # traced and compiled once per layer
            x = block(layer, x)

    After::

        x, _ = jax.lax.scan(lambda x, layer: (block(layer, x), None), x, stacked_layers)

Why it costs:
    Dynamo traces a function, AOT autograd builds its backward pass, inductor lowers, fuses and generates code, and g++
    or Triton compiles every kernel; autotuning runs many versions of each. A cold start of a large model takes minutes
    at each restart on every machine without a cache, and all ranks wait for the last one. A warm start repeats only
    tracing (guards and bytecode) and reads the rest from disk.

How it is found:
    From the log of torch.compile (`perfscope run`, or `TORCH_TRACE=DIR` of any program). Its phases overlap and nest;
    each moment is counted once, for the innermost phase, so that stages and compilations sum to the whole.
    A compilation is cold if inductor's cache (or AOT autograd's, if only that was used) returned miss or bypass. The
    cost is measured: AOT autograd, lowering, code generation, compilation and autotuning of cold compilations, once per
    start. This is the most that a warm cache can save. Tracing and imports are left out, and so are compilations that
    `recompilation` judges: those of a function that is compiled again in several steps. Profiling changes settings of
    inductor that are part of the caches' keys, so without the profiler the cache may have been warm; the finding
    includes this caveat.

    A compilation that a cache refuses (`bypass`) is cold in every start. It is a separate finding with torch's reason.
    With several ranks, the rule also finds functions that all ranks compiled cold at the same time, although one rank
    could have compiled them for all.

    In JAX programs, from the log of compilations and the compiled programs: a function that compiles for five seconds
    or more and contains the same products eight times or more (a Python loop over layers), constants of 16 MiB or more
    in a program (arrays that a jitted function closes over), and a minute or more of compilation without a cache on
    disk.

Fix:
    In JAX loop over equal layers with `jax.lax.scan` (`nn.scan`, `nnx.scan` in Flax), pass arrays as arguments, and set
    `jax_compilation_cache_dir`. In PyTorch keep the cache between starts: a `TORCHINDUCTOR_CACHE_DIR` that outlives the
    container, or the artifacts of one run for all others::

        artifacts = torch.compiler.save_cache_artifacts()    # after the first steps; (bytes, info) or None
        ...
        torch.compiler.load_cache_artifacts(saved_bytes)     # before the first compiled call

    Compile a repeated block once (regional compilation)::

        for layer in model.layers:
            layer.compile()            # instead of torch.compile(model)

    or mark it with `torch.compiler.nested_compile_region` inside a compiled model. Use `mode="max-autotune"` for the
    final run only, and compile in more processes (`TORCHINDUCTOR_COMPILE_THREADS`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.time import step_windows, steps_known
from perfscope.analyzers.torch_compile.frames import (
    compile_log_of,
    compile_records,
    compile_spans,
    plain_function,
    short_place,
    user_place,
    where_of,
)
from perfscope.analyzers.torch_compile.phases import CompileTime, Stage, compile_times
from perfscope.analyzers.torch_compile.rules.recompilation import compiled_again
from perfscope.model.finding import Cell, Finding, Once, fit_title
from perfscope.model.intervals import intersection_total, union
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns, format_share

if TYPE_CHECKING:
    from perfscope.model.compile_log import Compile, CompileLog

MIN_COLD_NS = 60 * 10**9
"""Smallest cold compile time beyond a warm start, one minute. Every start takes about as long to start processes, load
a checkpoint and fill the data loaders.
"""

HIGH_NS = 600 * 10**9
"""Ten minutes: the default timeout of an NCCL process group, at which a rank that is already warm ends."""

MIN_BYPASSED_NS = 10 * 10**9
"""Smallest compile time that a cache refuses, paid at each start, also on a warm machine; about the time that a start
takes for imports and processes.
"""

MAX_ROWS = 20


examined = compile_records

Warmth = Literal["cold", "warm", "uncached"]

MIN_REPEATS = 4
"""Minimum repetitions of a line's op in a graph for a repeated block: fewer are q, k, v and similar."""

MIN_REPEATED = 0.5
"""Share of a graph's nodes from which compiling its repeated block once is advised: it then halves the work after
tracing.
"""

_KEEP = (
    "Keep inductor's cache between starts: set TORCHINDUCTOR_CACHE_DIR to a folder that outlives the process. Or ship "
    "one run's: artifacts, _ = torch.compiler.save_cache_artifacts() after the first steps, and "
    "torch.compiler.load_cache_artifacts(artifacts) before the first compiled call."
)

_ENABLE_CACHE = (
    "Remove TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 from the environment and leave TORCHINDUCTOR_FX_GRAPH_CACHE at 1. No "
    "cache was queried. "
)

_BY_STAGE = {
    Stage.TUNING: ' Autotuning dominates: compile with mode="default" while developing, max-autotune for the last run.',
    Stage.KERNELS: " Building kernels dominates: raise TORCHINDUCTOR_COMPILE_THREADS to the free cores of the host.",
}

_REASONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"context_fn does not have a cache_hash"),
        "Give the context_fn of selective checkpointing an attribute `cache_hash` (a string that changes with the "
        "policy).",
    ),
    (
        re.compile(r"without uuid\(\) method|uuid\(\) returned None"),
        "Wrap the solver or estimator in the class that torch names and return a fixed uuid() from it.",
    ),
    (
        re.compile(r"[Uu]nsupported call_(function|method)"),
        "Move the function that torch names out of the compiled region, or register it as torch.library.custom_op. AOT "
        "autograd's cache accepts only ops known to be pure; newer versions of torch accept more.",
    ),
    (re.compile(r"freezing"), "Compile without torch._inductor.config.freezing: frozen weights are part of the code."),
    (
        re.compile(r"FX graph cache is not enabled"),
        "Leave TORCHINDUCTOR_FX_GRAPH_CACHE at 1: AOT autograd's cache needs inductor's.",
    ),
    (
        re.compile(r"custom.*pass|without uuid", re.IGNORECASE),
        "Derive the custom pass from torch._inductor.custom_graph_pass.CustomGraphPass and return a uuid() for it.",
    ),
)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield cold compiling of at least a minute, and compilations refused by caches of at least ten seconds."""
    if trace.compile_events or (trace.hlo and trace.compile_log is None):
        from perfscope.analyzers.torch_compile.rules.compile_time.jax import jax_findings

        yield from jax_findings(trace)
        if trace.compile_log is None:
            return
    compile_log_of(trace)
    use = trace.fact(cache_use)
    if use.spared_ns >= MIN_COLD_NS:
        yield _cold(trace, use)
    yield from _bypassed(trace, use)


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield one finding if all ranks compiled the same functions cold for at least a minute."""
    uses = {
        trace.source.rank: trace.fact(cache_use)
        for trace in traces
        if trace.compile_log is not None and trace.source.rank is not None
    }
    done = {
        rank: [
            (compile_time.compile.compile_id, compile_time.compile.function, compile_time.compile.graph_ops)
            for compile_time in (*use.cold, *use.uncached)
        ]
        for rank, use in uses.items()
    }
    if len(uses) < 2 or len({tuple(what) for what in done.values()}) > 1:
        return
    least = min(use.spared_ns for use in uses.values())
    if least < MIN_COLD_NS:
        return
    ranks = tuple(sorted(rank for rank in uses if rank is not None))
    first = uses[ranks[0]]
    costliest = max((*first.cold, *first.uncached), key=lambda compile_time: compile_time.cached_ns).compile
    yield Finding(
        subject="every rank compiles the same cold",
        title=f"{len(ranks)} ranks compile the same {len(done[ranks[0]]):,} graphs cold",
        severity="medium",
        basis="structural",
        where=where_of(user_place(costliest.place, costliest.stack)),
        ranks=ranks,
        evidence=tuple(
            {"rank": rank, "cold_compilations": len(uses[rank].cold), "spared_ns": uses[rank].spared_ns}
            for rank in sorted(ranks, key=lambda rank: -uses[rank].spared_ns)[:MAX_ROWS]
        ),
        advice="Compile once, in a job of one rank, and share its caches: torch.compiler.save_cache_artifacts(). Call "
        "torch.compiler.load_cache_artifacts(artifacts) on all ranks "
        "before the first compiled call.",
    )


class CacheUse(Struct, frozen=True, kw_only=True):
    """Compilations by the caches' results. Times in ns (``compile_times``)."""

    cold: tuple[CompileTime, ...]
    """A cache was queried and missed, or refuses the compilation."""
    warm: tuple[CompileTime, ...]
    uncached: tuple[CompileTime, ...]
    """A graph was compiled, but the log has no cache query."""
    again: tuple[CompileTime, ...]
    """Compilations that `recompilation` judges, with any cache result."""

    @property
    def spared_ns(self) -> int:
        """Upper bound of the time that warm caches would have saved."""
        return sum(compile_time.cached_ns for compile_time in (*self.cold, *self.uncached))


def cache_use(trace: Trace) -> CacheUse:
    """Return the compilations of a log by their caches; those without a graph are in none of the fields."""
    judged = {id(row.compilation) for again in trace.fact(compiled_again) for row in again.rows}
    held: dict[Warmth | None, list[CompileTime]] = {"cold": [], "warm": [], "uncached": [], None: []}
    again = []
    for compile_time in trace.fact(compile_times).compiles:
        if id(compile_time.compile) in judged:
            again.append(compile_time)
        else:
            held[warmth(compile_time.compile)].append(compile_time)
    return CacheUse(
        cold=tuple(held["cold"]), warm=tuple(held["warm"]), uncached=tuple(held["uncached"]), again=tuple(again)
    )


def warmth(compilation: Compile) -> Warmth | None:
    """Return whether its graphs came from a cache; ``None`` if it has none or failed.

    Inductor's part is the expensive one; if its cache hits, AOT autograd's own cache may have been bypassed.
    """
    inductor = [result for cache, result in compilation.caches.items() if cache.startswith("fx_graph")]
    answers = inductor or list(compilation.caches.values())
    if answers:
        return "warm" if all(result == "hit" for result in answers) else "cold"
    return "uncached" if compilation.graph_ops and compilation.fail_type is None else None


def repeated_part(log: CompileLog, compiles: Iterable[Compile]) -> float:
    """Return the share of the graphs' nodes that a repeated block makes at least twice, 0 to 1.

    A graph of a model with N equal layers has every line's op N times with the same dtype and shape; compiling the
    block once would avoid all but the first. Nodes without a line, and nodes with fewer than ``MIN_REPEATS``
    repetitions, count as made once.
    """
    wanted = {compilation.compile_id for compilation in compiles}
    nodes = again = 0
    for graph in log.graphs:
        if graph.compile_id not in wanted:
            continue
        nodes += len(graph.nodes)
        counts = Counter(
            (node.op, node.dtype, node.shape, node.place) for node in graph.nodes if node.place is not None
        )
        again += sum(count - 1 for count in counts.values() if count >= MIN_REPEATS)
    return again / nodes if nodes else 0.0


def cold_advice(stage: Stage | None, repeated: float, *, cached: bool) -> str:
    """Return the advice on a cold start dominated by ``stage`` (``None``: unknown).

    ``repeated``: share of the graphs' nodes that repeat a block. ``cached``: whether any cache was queried.
    """
    advice = _KEEP if cached else _ENABLE_CACHE + _KEEP
    if repeated >= MIN_REPEATED:
        advice += (
            f" {100 * repeated:.0f}% of the graphs' ops repeat a block: compile it once with `for layer in "
            "model.layers: layer.compile()`. Or mark its forward with torch.compiler.nested_compile_region."
        )
    return advice + (_BY_STAGE.get(stage, "") if stage is not None else "")


def bypass_advice(reason: str) -> str:
    """Return how to make a compilation cacheable that was refused with ``reason``."""
    known = next((advice for pattern, advice in _REASONS if pattern.search(reason)), None)
    return known or (
        "Remove the cause that torch names from the compiled function. "
        "TORCH_LOGS=+torch._functorch.autograd_cache has details."
    )


def _cold(trace: Trace, use: CacheUse) -> Finding:
    log = compile_log_of(trace)
    missed = (*use.cold, *use.uncached)
    costliest = max(missed, key=lambda compile_time: compile_time.cached_ns)
    stages: dict[Stage, int] = defaultdict(int)
    for compile_time in missed:
        for stage, spent in compile_time.stages_ns.items():
            stages[stage] += spent
    top = max(stages, key=lambda stage: stages[stage], default=None)
    whole = sum(compile_time.total_ns for compile_time in (*missed, *use.warm))
    compilations = len(missed) + len(use.warm)
    detail = f"Compiling takes {format_ns(whole)}"
    if top is not None:
        detail += f"; {top} takes {format_share(stages[top], whole)}"
    detail += f"; {plain_function(costliest.compile.function)} alone {format_ns(costliest.total_ns)}"
    detail += _in_steps(trace, whole)
    if log.settings:
        detail += f"; without perfscope's own settings ({', '.join(log.settings)}) they may hit"
    return Finding(
        subject="cold compilation",
        title=f"{len(missed):,} of {compilations:,} compilations miss the caches",
        detail=f"{detail}.",
        # with settings other than the program's own, it is unknown whether the program starts cold
        severity="low" if log.settings else _severity(use.spared_ns),
        basis="measured",
        cost_ns=use.spared_ns,
        once=Once(times=len(missed), steps=steps_known(trace)),
        where=where_of(user_place(costliest.compile.place, costliest.compile.stack)),
        evidence=tuple(
            _row(compile_time)
            for compile_time in sorted(missed, key=lambda compile_time: -compile_time.total_ns)[:MAX_ROWS]
        ),
        spans=spans_within(trace, compile_spans(trace, [compile_time.compile for compile_time in missed])),
        advice=cold_advice(
            top, repeated_part(log, [compile_time.compile for compile_time in missed]), cached=bool(use.cold)
        ),
    )


def _severity(spared_ns: int) -> Severity:
    return "high" if spared_ns >= HIGH_NS else "medium"


def _in_steps(trace: Trace, whole: int) -> str:
    """Return the time as a number of steps, and the part of all compiling in recorded steps."""
    text = ""
    if trace.step_times_ns:
        step = median(trace.step_times_ns)
        text += f"; as long as {whole / step:,.0f} steps" if step else ""
    windows = trace.fact(step_windows)
    log = compile_log_of(trace)
    inside = intersection_total(compile_spans(trace, log.compiles), union(windows.starts, windows.ends))
    return text + (f"; {format_ns(inside)} of all compiling lies in the recorded steps" if inside else "")


def _row(compile_time: CompileTime) -> dict[str, Cell]:
    compilation, stages = compile_time.compile, compile_time.stages_ns
    code_line = user_place(compilation.place, compilation.stack)
    answers = ", ".join(f"{cache} {result}" for cache, result in sorted(compilation.caches.items())) or "not asked"
    if len(set(compilation.caches.values())) == 1:
        answers = f"each a {next(iter(compilation.caches.values()))}"
    return {
        "compile_id": compilation.compile_id,
        "frame": plain_function(compilation.function) + (f" ({short_place(code_line)})" if code_line else ""),
        "ops": compilation.graph_ops,
        "caches": answers,
        "total_ns": compile_time.total_ns,
        "tracing_ns": stages.get(Stage.TRACING, 0),
        "aot_ns": stages.get(Stage.AOT, 0),
        "lowering_ns": stages.get(Stage.LOWERING, 0),
        "code_ns": stages.get(Stage.CODE, 0),
        "kernels_ns": stages.get(Stage.KERNELS, 0),
        "tuning_ns": stages.get(Stage.TUNING, 0),
        "loading_ns": stages.get(Stage.CACHES, 0),
    }


def _bypassed(trace: Trace, use: CacheUse) -> Iterable[Finding]:
    """Yield one finding per cache and reason."""
    groups: dict[tuple[str, str], list[CompileTime]] = defaultdict(list)
    for compile_time in (*use.cold, *use.warm):
        for cache, result in compile_time.compile.caches.items():
            if result == "bypass":
                groups[cache, compile_time.compile.cache_reasons.get(cache, "no reason given")].append(compile_time)
    for (cache, reason), members in groups.items():
        spent = sum(_refused_ns(cache, member) for member in members)
        if spent < MIN_BYPASSED_NS:
            continue
        worst = max(members, key=lambda compile_time: _refused_ns(cache, compile_time)).compile
        yield Finding(
            subject=f"not cacheable ({cache})",
            title=fit_title(f"{len(members):,} compilations bypass {cache} at each start", cache),
            detail=f"They are not cacheable, even with warm caches: {reason}.",
            severity=_severity(spent),
            basis="measured",
            cost_ns=spent,
            once=Once(times=len(members), steps=steps_known(trace)),
            where=where_of(user_place(worst.place, worst.stack)),
            evidence=tuple(
                _row(member) for member in sorted(members, key=lambda compile_time: -compile_time.total_ns)[:MAX_ROWS]
            ),
            spans=spans_within(trace, compile_spans(trace, [member.compile for member in members])),
            advice=bypass_advice(reason),
        )


def _refused_ns(cache: str, compile_time: CompileTime) -> int:
    """Return the cost of the refusal: its own stage for AOT autograd's cache, everything after it for inductor's."""
    return compile_time.stages_ns.get(Stage.AOT, 0) if cache == "aotautograd" else compile_time.cached_ns
