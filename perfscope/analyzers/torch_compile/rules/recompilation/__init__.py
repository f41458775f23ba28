"""A function that was compiled already is traced and compiled again while the program trains.

Why it costs:
    `jax.jit` compiles once for every combination of shapes, dtypes, static arguments and shardings it sees,
    and for every new function object; `torch.compile` once for every set of guards. Compiling takes from
    milliseconds to minutes, on the host, and the device waits. At its limit (8 a function) torch.compile gives
    up: other calls of the function then run in eager mode (`eager_fallback`).

How it is found:
    JAX: from what a run logs of `jax.monitoring` and of `jax_explain_cache_misses`: compilations of a function
    in a step after the first one that was seen, of a function that was compiled before. Time is that of tracing,
    lowering and compiling it in those steps, moments counted once.

    PyTorch: from torch.compile's log: compilations of a frame that was compiled before, in at least two steps
    after the first one that compiled (in a log without steps: at least two). Time is that of all phases of
    those compilations, the backward's with them, moments counted once. Cause and line are those of the guard
    that failed of the latest compilation; where torch writes no line behind it (it does for most guards on values
    and objects, not for those on tensors) the line is the function's first. A frame whose recompilations are
    mostly for ever new sizes of one dimension is `dynamic_shape_churn`, never both.

    In a planned program (`perfscope compile`) recompilations count over the steps that were walked through, of
    what the program compiles itself; no time is known.

    Elsewhere the time is measured, and an upper bound where the device still had work queued. The first
    compilation of a function and whatever happens before the first step are left alone, and so is a single
    recompilation: dynamo makes a size or number dynamic when it sees a second value.

Fix:
    Give it what it has seen: pad or bucket shapes, pass numbers that change as arrays or tensors, and define
    jitted functions once, outside the loop::

        step = jax.jit(train_step)          # once, not in the loop
        state = step(state, batch, jnp.int32(number))

        rate = torch.tensor(0.1, device="cuda")       # not a Python float that changes
        loss = compiled_model(batch, rate)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.time import REGION
from perfscope.analyzers.torch_compile.rules.recompilation.compiled import recompilation_findings
from perfscope.analyzers.torch_compile.rules.recompilation.plan import planned_again_findings
from perfscope.model.finding import AbstainError, Finding, Where, severity_of
from perfscope.model.intervals import Intervals, union
from perfscope.model.jax_log import CompileEvent
from perfscope.model.trace import RECORDED, Trace
from perfscope.model.units import format_ns

NEEDS = ()

MIN_STEPS = 2
"""Steps with a recompilation of the same jitted function. A last, smaller batch compiles once more and never again."""

MAX_ROWS = 20

_TIMED = frozenset({"trace", "lower", "compile"})


def check(trace: Trace) -> Iterable[Finding]:
    """One finding for each function that is compiled again in several steps."""
    log = trace.compile_log
    if log is not None and (log.compiles or log.breaks or "compile_events" not in trace.recorded):
        yield from recompilation_findings(trace)
    if "compile_events" not in trace.recorded:
        if log is None:
            raise AbstainError(f"not recorded: {RECORDED[_absent(trace)]}")
        return
    steps = [event.step for event in trace.compile_events if event.step is not None]
    if not steps:
        return
    by_function: dict[str, list[CompileEvent]] = defaultdict(list)
    for event in trace.compile_events:
        if event.function is not None:
            by_function[event.function.removeprefix("jit(").removesuffix(")")].append(event)
    for function, events in by_function.items():
        again = _again(events, min(steps))
        if len({event.step for event in again if event.kind == "compile"}) >= MIN_STEPS:
            yield _finding(trace, function, again, max(steps) - min(steps) + 1)


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Frames of a planned program that are compiled again, without time; those for ever new sizes are left out."""
    return planned_again_findings(trace, churn=False)


def _absent(trace: Trace) -> str:
    """What would have told; where nothing was compiled it is said in the words of other rules on XLA's programs."""
    if any(name.startswith(REGION) for name in trace.strings):
        return "compile_log"
    return "compile_events" if "hlo" in trace.recorded else "hlo"


def _again(events: Sequence[CompileEvent], first_step: int) -> list[CompileEvent]:
    """Events of a function after its first compilation, in steps after the first one seen."""
    compiled = next((event.end_ns for event in events if event.kind == "compile"), None)
    if compiled is None:
        return []
    return [event for event in events if event.end_ns > compiled and event.step is not None and event.step > first_step]


def _finding(trace: Trace, function: str, again: list[CompileEvent], spanned: int) -> Finding:
    timed = [event for event in again if event.kind in _TIMED and event.duration_ns]
    cost = _union_ns(timed)
    count = sum(event.kind == "compile" for event in again)
    # steps of the whole run: those timed without a profiler are not all, those in the log may be few
    steps = max(spanned, len(trace.step_times_ns))
    where = Counter((event.file, event.line) for event in again if event.file is not None).most_common(1)
    file, line = where[0][0] if where else (None, None)
    per_step = cost // steps
    step_ns = median(trace.step_times_ns) if trace.step_times_ns else per_step
    reasons = Counter(event.reason for event in again if event.reason)
    why = f"; {reasons.most_common(1)[0][0].splitlines()[0][:200]}" if reasons else ""
    return Finding(
        subject=f"recompilation of {function}",
        title=f"{function} is compiled {count:,} more times in {len({event.step for event in again}):,} steps, "
        f"{format_ns(cost)} in all{why}",
        severity=severity_of(per_step, max(step_ns, per_step)),
        basis="measured",
        cost_ns=cost,
        cost_ns_per_step=per_step,
        where=Where(file=file, line=line),
        evidence=tuple(_row(step, found) for step, found in _by_step(again)[:MAX_ROWS]),
        spans=spans_within(trace, _spent(again)),
        advice="Call it with what it has seen before: pad shapes to a few sizes, pass numbers that change as arrays "
        "(jnp.int32(i)) instead of static arguments, and make the jitted function once, outside the loop.",
    )


def _by_step(again: list[CompileEvent]) -> list[tuple[int, list[CompileEvent]]]:
    """Steps, the dearest first."""
    steps: dict[int, list[CompileEvent]] = defaultdict(list)
    for event in again:
        if event.step is not None:
            steps[event.step].append(event)
    return sorted(steps.items(), key=lambda pair: (-_union_ns(pair[1]), pair[0]))


def _row(step: int, found: list[CompileEvent]) -> dict[str, str | int | float | None]:
    return {
        "step": step,
        "compilations": sum(event.kind == "compile" for event in found),
        "spent_ns": _union_ns(found),
        "reason": next((event.reason[:300] for event in found if event.reason), None),
    }


def _union_ns(events: Sequence[CompileEvent]) -> int:
    """Time covered; a trace holds what is traced inside it, so durations must not be added up."""
    return _spent(events).total()


def _spent(events: Sequence[CompileEvent]) -> Intervals:
    timed = [event for event in events if event.kind in _TIMED and event.duration_ns]
    ends = np.array([event.end_ns for event in timed], np.int64)
    lengths = np.array([event.duration_ns for event in timed], np.int64)
    return union(ends - lengths, ends)
