"""Findings of ``recompilation`` in JAX programs: one per function, by the cause of the new compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.spans import removed_time
from perfscope.analyzers.time import time_within
from perfscope.analyzers.torch_compile.jax_causes import CompiledAgain, arguments, fix_words, reason_words
from perfscope.analyzers.torch_compile.jax_compilations import (
    Cause,
    Compilation,
    CompiledFunction,
    compiled_functions,
    growing_dimension,
    joined,
)
from perfscope.analyzers.torch_compile.paid_times import PaidTimes
from perfscope.model.finding import Cell, Finding, Where, fit_title
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

MIN_STEPS = 2
"""Minimum number of steps with a recompilation of the same function. A last, smaller batch causes only one."""

MIN_ONCE_NS = 5 * 10**7
"""Minimum time of a single avoidable recompilation. It takes 50 ms in small programs, but seconds in large ones."""

HIGH_ONCE_NS = 10 * 10**9
"""Time from which severity is medium: about the time of imports and process start."""

MAX_ROWS = 20
_NEVER_MEANT: frozenset[Cause] = frozenset({"dtype", "placement", "setting", "sharding", "weak type"})
"""Causes for which the first program could have computed the same, so that a single recompilation is reported."""

_OF_NEW_FUNCTIONS: frozenset[Cause] = frozenset({"made anew", "unknown"})
"""Causes of the first call of a function object."""

_LAX = {"while": "while_loop"}
"""Functions of `jax.lax` by the primitive that they call, where the names differ."""


def jax_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per function that is compiled again in several steps, or once for an avoidable cause."""
    for function in trace.fact(compiled_functions):
        again = _counted(function)
        if again is not None:
            yield _finding(trace, again)


def _of_one_function(function: CompiledFunction) -> list[Compilation]:
    """Return the compilations after the first, without first calls of another function that was made at that place.

    A factory that is called before the loop returns several functions of one definition, each called at its line.
    """
    lines = {(function.compilations[0].file, function.compilations[0].line)}
    rows = []
    for row in function.again:
        if (row.file, row.line) in lines or row.cause not in _OF_NEW_FUNCTIONS:
            rows.append(row)
        lines.add((row.file, row.line))
    return rows


def _counted(function: CompiledFunction) -> CompiledAgain | None:
    again = _of_one_function(function)
    later = [row for row in again if row.step is not None and row.step > 0]
    if len({row.step for row in later}) >= MIN_STEPS:
        lines = {(row.file, row.line) for row in later}
        # warm-up steps have no number yet
        rows = [row for row in again if row.step != 0 and (row.file, row.line) in lines]
        times: dict[Cause, int] = {}
        for row in rows:
            times[row.cause] = times.get(row.cause, 0) + row.spans.total()
        return CompiledAgain(
            function=function, rows=tuple(rows), cause=max(times, key=lambda cause: times[cause]), repeated=True
        )
    if function.defined_file is None:  # jax's own operations: another dtype is another operation
        return None
    lines, slips = {(function.compilations[0].file, function.compilations[0].line)}, []
    for row in function.again:
        if row.cause in _NEVER_MEANT and (row.file, row.line) in lines:
            slips.append(row)
        lines.add((row.file, row.line))
    if joined(slips).total() < MIN_ONCE_NS:
        return None
    cause = max(slips, key=lambda row: row.spans.total()).cause
    return CompiledAgain(function=function, rows=tuple(slips), cause=cause, repeated=False)


def _finding(trace: Trace, again: CompiledAgain) -> Finding:
    spans, name = joined(again.rows), again.function.name
    where = Counter((row.file, row.line) for row in again.rows if row.file is not None).most_common(1)
    file, line = where[0][0] if where else (again.function.defined_file, again.function.defined_line)
    covered = time_within(trace, "compilation", spans)
    times = _paid(trace, again, spans.total())
    return Finding(
        subject=f"recompilation of {name}",
        title=fit_title(_title(again), name),
        detail=_detail(again, times),
        severity=_severity(trace, again, times),
        basis="measured",
        cost_ns=times.total_ns,
        cost_ns_per_step=times.per_step_ns,
        once=times.once,
        where=Where(file=file, line=line),
        evidence=tuple(_row(row) for row in sorted(again.rows, key=lambda row: -row.spans.total())[:MAX_ROWS]),
        covers_ns={"compilation": covered},
        spans=spans_within(trace, spans),
        advice=fix_words(again),
        removes=(removed_time(spans),) if again.repeated else (),
    )


def _paid(trace: Trace, again: CompiledAgain, total: int) -> PaidTimes:
    steps = [row.step for row in trace.compile_events if row.step is not None]
    return PaidTimes(
        total_ns=total,
        times=len(again.rows),
        steps=tuple(row.step for row in again.rows if row.step is not None),
        # steps timed without a profiler are not all steps, and steps in the log may be few
        seen=max(max(steps) - min(steps) + 1, len(trace.step_times_ns)) if steps else None,
    )


def _severity(trace: Trace, again: CompiledAgain, times: PaidTimes) -> Severity:
    if not again.repeated:
        return "medium" if times.total_ns >= HIGH_ONCE_NS else "low"
    return times.severity(median(trace.step_times_ns) if trace.step_times_ns else 0)


def _title(again: CompiledAgain) -> str:
    name, count = again.function.name, len(again.rows)
    often = f"{count:,} more times" if count > 1 else "once more"
    named = arguments(again)
    match again.cause:
        case "made anew":
            return f"{name} is jitted anew and compiled {often}"
        case "control flow":
            return f"jax.lax.{_LAX.get(name, name)} outside of jit is compiled {often}"
        case "weak type" if named:
            return f"{name} is compiled {often}: {named[0]} is weakly typed at first"
        case "dtype" | "sharding" if named:
            return f"{name} is compiled {often}: the {again.cause} of {named[0]} changes"
        case "placement":
            return f"{name} is compiled {often}: its arguments are placed differently"
        case "static value" if named:
            return f"{name} is compiled {often}, for each value of static {named[0]}"
        case "shape" if named:
            grows = growing_dimension(again.of_cause)
            what = f"{grows[0]} grows" if grows else f"the shape of {named[0]} changes"
            return f"{name} is compiled {often}: {what}"
    return f"{name} is compiled {often}"


def _detail(again: CompiledAgain, times: PaidTimes) -> str:
    count, total = len(again.rows), times.total_ns
    whole = [median(times) for times in zip(*((r.trace_ns, r.lower_ns, r.compile_ns) for r in again.rows), strict=True)]
    parts = f"tracing {format_ns(whole[0])}, lowering {format_ns(whole[1])}, XLA {format_ns(whole[2])}"
    each = f"Each takes {format_ns(total / count)} ({parts})" if count > 1 else f"It takes {format_ns(total)} ({parts})"
    return f"{reason_words(again)}{each}. {times.which_steps()}".rstrip()


def _row(row: Compilation) -> dict[str, Cell]:
    return {
        "step": row.step,
        "line": None if row.file is None else f"{row.file}:{row.line}",
        "cause": row.cause,
        "spent_ns": row.spans.total(),
        "trace_ns": row.trace_ns,
        "lower_ns": row.lower_ns,
        "compile_ns": row.compile_ns,
        "reason": row.reason[:300] or None,
    }
