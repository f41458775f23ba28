"""Findings of ``recompilation`` in JAX programs: one per function, by the cause of the new compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from msgspec import Struct

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.time import removed_time, time_within
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
MOST_NAMED = 3
"""Maximum number of arguments and values named in a sentence."""

_NEVER_MEANT: frozenset[Cause] = frozenset({"dtype", "placement", "setting", "sharding", "weak type"})
"""Causes for which the first program could have computed the same, so that a single recompilation is reported."""

_OF_NEW_FUNCTIONS: frozenset[Cause] = frozenset({"made anew", "unknown"})
"""Causes of the first call of a function object."""

_LAX = {"while": "while_loop"}
"""Functions of `jax.lax` by the primitive that they call, where the names differ."""

_FIX: dict[Cause, str] = {
    "made anew": "Call jax.jit once, before the loop, and call the function that it returns. A lambda, a "
    "functools.partial, a bound method or a function defined in the loop is a new function each time; pass what "
    "changes as an argument.",
    "control flow": "Put the whole step in one function with @jax.jit: loops and branches inside of it are compiled "
    "once, with it.",
    "weak type": "Give {argument} its dtype where it is made: jnp.asarray(0.0, dtype=jnp.float32), not a Python "
    "number. Then the first call has the types of all later ones.",
    "dtype": "Cast {argument} to one dtype before the call, also in the first one.",
    "sharding": "Before the first call, place {argument} where the step leaves it: jax.device_put({argument}, "
    "sharding). Or set out_shardings (jax.jit) so that results keep the placement of the arguments.",
    "placement": "Before the first call, place the arguments where the step leaves them: jax.device_put(state, "
    "sharding) once. Or jit the function that makes them with out_shardings.",
    "static value": "Pass {argument} as an array (jnp.int32(i)), not as a static argument. If it determines shapes, "
    "use few values.",
    "shape": "Pad {argument} to a few sizes (the next power of two) and mask the padding; drop or pad a last, "
    "smaller batch.",
    "structure": "Give the function the same tree in each call: make optional entries (None, missing keys) before "
    "the loop.",
    "setting": "Set it once, before the first call, and not in a context manager inside the loop.",
    "unknown": "Pad shapes to a few sizes, and pass numbers that change as arrays (jnp.int32(i)), not as static "
    "arguments. Make the jitted function once, outside the loop.",
}

_PREALLOCATE = (
    "Allocate {argument} once at its greatest length and write into it: jax.lax.dynamic_update_slice_in_dim(cache, "
    "new, position, axis=0). The position is an array, and later places are masked. Or run the loop inside "
    "jax.lax.scan. Each new length is a new program."
)


class _Again(Struct, frozen=True, kw_only=True):
    """The recompilations of a function that count."""

    function: CompiledFunction
    rows: tuple[Compilation, ...]
    cause: Cause
    repeated: bool
    """Whether they occur in several steps; False if they end after a few."""

    @property
    def of_cause(self) -> tuple[Compilation, ...]:
        """Recompilations with the most frequent cause."""
        return tuple(row for row in self.rows if row.cause == self.cause)


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


def _counted(function: CompiledFunction) -> _Again | None:
    again = _of_one_function(function)
    later = [row for row in again if row.step is not None and row.step > 0]
    if len({row.step for row in later}) >= MIN_STEPS:
        lines = {(row.file, row.line) for row in later}
        # warm-up steps have no number yet
        rows = [row for row in again if row.step != 0 and (row.file, row.line) in lines]
        times: dict[Cause, int] = {}
        for row in rows:
            times[row.cause] = times.get(row.cause, 0) + row.spans.total()
        return _Again(
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
    return _Again(function=function, rows=tuple(slips), cause=cause, repeated=False)


def _finding(trace: Trace, again: _Again) -> Finding:
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
        advice=_advice(again),
        removes=(removed_time(spans),) if again.repeated else (),
    )


def _paid(trace: Trace, again: _Again, total: int) -> PaidTimes:
    steps = [row.step for row in trace.compile_events if row.step is not None]
    return PaidTimes(
        total_ns=total,
        times=len(again.rows),
        steps=tuple(row.step for row in again.rows if row.step is not None),
        # steps timed without a profiler are not all steps, and steps in the log may be few
        seen=max(max(steps) - min(steps) + 1, len(trace.step_times_ns)) if steps else None,
    )


def _severity(trace: Trace, again: _Again, times: PaidTimes) -> Severity:
    if not again.repeated:
        return "medium" if times.total_ns >= HIGH_ONCE_NS else "low"
    return times.severity(median(trace.step_times_ns) if trace.step_times_ns else 0)


def _title(again: _Again) -> str:
    name, count = again.function.name, len(again.rows)
    often = f"{count:,} more times" if count > 1 else "once more"
    arguments = _arguments(again)
    match again.cause:
        case "made anew":
            return f"{name} is jitted anew and compiled {often}"
        case "control flow":
            return f"jax.lax.{_LAX.get(name, name)} outside of jit is compiled {often}"
        case "weak type" if arguments:
            return f"{name} is compiled {often}: {arguments[0]} is weakly typed at first"
        case "dtype" | "sharding" if arguments:
            return f"{name} is compiled {often}: the {again.cause} of {arguments[0]} changes"
        case "placement":
            return f"{name} is compiled {often}: its arguments are placed differently"
        case "static value" if arguments:
            return f"{name} is compiled {often}, for each value of static {arguments[0]}"
        case "shape" if arguments:
            grows = growing_dimension(again.of_cause)
            what = f"{grows[0]} grows" if grows else f"the shape of {arguments[0]} changes"
            return f"{name} is compiled {often}: {what}"
    return f"{name} is compiled {often}"


def _arguments(again: _Again) -> list[str]:
    """Return the arguments that differ for the cause, most frequent first."""
    names = Counter(one.argument for row in again.of_cause for one in row.differences if one.argument)
    return [_argument(name) for name, _ in names.most_common()]


def _argument(path: str) -> str:
    """Return ``n`` for ``[1]['n']``, a path in (positional, named) arguments; ``argument 1`` for ``[0][1]``."""
    if path.startswith("[1]['"):
        return path.removeprefix("[1]['").partition("'")[0]
    if path.startswith("[0]["):
        return f"argument {path.removeprefix('[0][').partition(']')[0]}"
    return path


def _detail(again: _Again, times: PaidTimes) -> str:
    count, total = len(again.rows), times.total_ns
    whole = [median(times) for times in zip(*((r.trace_ns, r.lower_ns, r.compile_ns) for r in again.rows), strict=True)]
    parts = f"tracing {format_ns(whole[0])}, lowering {format_ns(whole[1])}, XLA {format_ns(whole[2])}"
    each = f"Each takes {format_ns(total / count)} ({parts})" if count > 1 else f"It takes {format_ns(total)} ({parts})"
    return f"{_why(again)}{each}. {times.which_steps()}".rstrip()


def _why(again: _Again) -> str:
    """Return a sentence about the cause; ``''`` if jax gives none."""
    names, differences = _arguments(again), [one for row in again.of_cause for one in row.differences]
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    shown = ", ".join(names[:MOST_NAMED]) + more
    first = differences[0] if differences else None
    match again.cause:
        case "made anew":
            return "Each call passes jax.jit a new function object, which has no compiled program yet. "
        case "control flow":
            return "Outside of jit, jax compiles the loop or branch alone; a body made in each call is a new program. "
        case "weak type" if first is not None:
            return f"{shown}: a Python number at first, {first.now} from the step's result later. "
        case "dtype" | "sharding" if first is not None:
            return f"{shown}: {first.before} at first, then {first.now}. "
        case "placement":
            return (
                "Types are the same and jax does not trace again: an argument is on another device, was not committed "
                "to its device by jax.device_put, or has another sharding. "
            )
        case "static value" if first is not None:
            values = list(dict.fromkeys(one.now for one in differences))
            return f"Values of {shown}: {', '.join(values[:MOST_NAMED])}{' ...' if values[MOST_NAMED:] else ''}. "
        case "shape" if first is not None:
            shapes = list(dict.fromkeys(one.now for one in differences if one.argument == first.argument))
            rest = f" ... {shapes[-1]}" if shapes[MOST_NAMED:] else ""
            return f"{_argument(first.argument)}: {', '.join(shapes[:MOST_NAMED])}{rest}. "
        case "structure" if first is not None:
            return f"The tree of arguments changes at {shown}: {first.before[:80]} at first, then {first.now[:80]}. "
        case "setting":
            return f"A setting of jax changes between calls: {shown or 'jax does not name it'}. "
    return ""


def _advice(again: _Again) -> str:
    grows = growing_dimension(again.of_cause) if again.cause == "shape" else None
    text = _PREALLOCATE if grows else _FIX[again.cause]
    names = _arguments(again)
    argument = grows[0] if grows else names[0] if names else "it"
    return text.replace("{argument}", argument)


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
