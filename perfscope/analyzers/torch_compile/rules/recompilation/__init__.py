"""A compiled function is traced and compiled again while the program trains.

Example:
    Before::

        for number, batch in enumerate(loader):
            state = jax.jit(train_step)(state, batch)               # a new function in each step

    After::

        step = jax.jit(train_step)
        for number, batch in enumerate(loader):
            state = step(state, batch)

Why it costs:
    `jax.jit` compiles once for every combination of shapes, dtypes, static arguments and shardings, and for every new
    function object; `torch.compile` compiles once for every set of guards. Compilation takes milliseconds to minutes on
    the host while the device waits. At its limit (8 per function) torch.compile gives up, and other calls of the
    function run in eager mode (`eager_fallback`).

How it is found:
    JAX: from `jax.monitoring` and `jax_explain_cache_misses` in a run's log: repeated compilations of a function in at
    least two steps after the first. One repetition is enough if the same line called the function and the arguments
    differ only in weak type, dtype, sharding or device, or if a setting of jax changed, because the program then
    compiles the same work twice. The time covers tracing, lowering and compiling, each moment counted once. Cause and
    argument are the ones that jax names for most compilations.

    PyTorch: from torch.compile's log: repeated compilations of a frame in at least two steps after the first one that
    compiled (in a log without steps: at least two compilations). The time covers all phases of those compilations,
    including the backward pass, each moment counted once. Cause and line are those of the failed guard of the latest
    compilation. If torch gives no line (it does for most guards on values and objects, but not on tensors), the line is
    the function's first. A frame belongs to `dynamic_shape_churn` instead if most of its recompilations are for new
    sizes of one dimension.

    In a planned program (`perfscope compile`) recompilations are counted over the planned steps, for what the program
    compiles itself, without time.

    Elsewhere the time is measured, and an upper bound if the device still had work queued. The first compilation of a
    function is not reported, nor is a single recompilation for another shape or value: a last, smaller batch compiles
    only once, and dynamo makes a size or number dynamic at its second value. A single recompilation for a Python number
    (PyTorch) is reported if it takes at least a tenth of the time of all timed steps.

Fix:
    Keep the inputs of compiled functions alike: pad or bucket shapes, pass changing numbers as arrays or tensors, and
    define jitted functions once, outside the loop::

        step = jax.jit(train_step)          # once, not in the loop
        state = step(state, batch, jnp.int32(number))

        rate = torch.tensor(0.1, device="cuda")       # not a Python float that changes
        loss = compiled_model(batch, rate)
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.spans import REGION, removed_time
from perfscope.analyzers.time import time_within
from perfscope.analyzers.torch_compile.frames import (
    CompiledFrame,
    compile_log_of,
    compile_records,
    compile_spans,
    compiled_frames,
    is_users,
    one_line,
    plain_function,
    where_of,
)
from perfscope.analyzers.torch_compile.paid_times import PaidTimes
from perfscope.model.finding import AbstainError, Cell, Finding, Where, fit_title
from perfscope.model.intervals import Intervals
from perfscope.model.severity import Severity, severity_of
from perfscope.model.trace import RECORDED, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.torch_compile.guards import Guard
    from perfscope.model.compile_log import CodeLine, Compile, CompileLog, Recompile

examined = compile_records

MIN_RECOMPILATIONS = 2
"""Minimum recompilations of a frame, in different steps if steps are known. Dynamo needs one to learn that a size is
dynamic.
"""

NOTICED_SHARE = 0.1
"""Share of all timed steps from which a single recompilation is reported: it is paid once, so a longer run outweighs
it.
"""

MIN_SIZES = 3
"""Minimum number of sizes of one dimension. With automatic dynamic shapes the second size makes the dimension dynamic,
so a third recompiled size shows that it remains specialised.
"""

CHURN_SHARE = 0.5
"""Share of a frame's recompilations for sizes of one dimension from which that dimension is the one to fix."""

MAX_ROWS = 20

MOST_SIZES_SHOWN = 8

MOST_VALUES_SHOWN = 3

_OF_WHICH = re.compile(r"^\d+/\d+: ")
"""Prefix of a reason: the compilation whose guard failed."""


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per function that is compiled again in several steps."""
    log = trace.compile_log
    if log is not None and (log.compiles or log.breaks or "compile_events" not in trace.recorded):
        yield from recompilation_findings(trace, churn=False)
    if "compile_events" not in trace.recorded:
        if log is None:
            raise AbstainError(f"not recorded: {RECORDED[_absent(trace)]}", (_absent(trace),))
        return
    from perfscope.analyzers.torch_compile.rules.recompilation.jax import jax_findings

    yield from jax_findings(trace)


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield frames of a planned program that are compiled again, without time.

    `dynamic_shape_churn` covers new sizes.
    """
    return planned_again_findings(trace, churn=False)


class Counted(Struct, frozen=True, kw_only=True):
    """A compilation of a frame after the first one."""

    compilation: Compile
    guard: Guard | None
    """Failed guard of the latest previous compilation; ``None`` if the log lacks it."""
    place: CodeLine | None
    """The user's line that required that guard, if the log has it."""
    step: int | None


class Again(Struct, frozen=True, kw_only=True):
    """A frame that was compiled repeatedly."""

    frame: CompiledFrame
    rows: tuple[Counted, ...]
    """In order."""
    spans: Intervals
    """Union of their compile times."""
    over_steps: int | None
    """Number of steps of the run; ``None`` if steps are unknown."""

    @property
    def times(self) -> PaidTimes:
        """The compilations with the steps that paid for them."""
        steps = [row.step for row in self.rows if row.step is not None]
        return PaidTimes(total_ns=self.spans.total(), times=len(self.rows), steps=tuple(steps), seen=self.over_steps)


def compiled_again(trace: Trace) -> tuple[Again, ...]:
    """Return the frames with at least ``MIN_RECOMPILATIONS``, or with a long recompilation for a Python number."""
    from perfscope.analyzers.torch_compile.guards import parse_guard

    log = trace.compile_log
    if log is None:
        return ()
    steps = {
        id(compilation): None if compilation.start_ns is None else log.step_at(compilation.start_ns)
        for compilation in log.compiles
    }
    first = min((step for step in steps.values() if step is not None), default=None)
    result = []
    for frame in trace.fact(compiled_frames):
        reasons = {recompile.compile_id: recompile for recompile in frame.recompiles}
        rows = []
        for compilation in frame.compiles[1:]:
            step = steps[id(compilation)]
            if first is not None and (step is None or step <= first):
                continue
            if not compilation.traced_graphs and compilation.has_code is False:
                continue  # the compilation that reached the limit compiled nothing
            why = reasons.get(compilation.compile_id)
            guard = parse_guard(why.reasons[0]) if why is not None and why.reasons else None
            place = None if why is None else _whole(trace, why.guard_place)
            rows.append(Counted(compilation=compilation, guard=guard, place=place, step=step))
        different = len(rows) if first is None else len({row.step for row in rows})
        spans = compile_spans(trace, [row.compilation for row in rows])
        numbers = all(row.guard is not None and row.guard.kind == "number" for row in rows)
        noticed = bool(rows) and numbers and spans.total() >= NOTICED_SHARE * sum(trace.step_times_ns)
        if different >= MIN_RECOMPILATIONS or (noticed and trace.step_times_ns):
            over = None if first is None else _over_steps(trace, log)
            result.append(Again(frame=frame, rows=tuple(rows), spans=spans, over_steps=over))
    return tuple(result)


def _over_steps(trace: Trace, log: CompileLog) -> int:
    """Return the number of known steps of the run; steps with compilations may be few, and so may timed steps."""
    numbers = [span.step for span in log.steps if span.step is not None]
    spanned = max(numbers) - min(numbers) + 1 if numbers else 1
    recorded = trace.rows["steps"]["number"]
    seen = int(recorded.max()) + 1 if len(recorded) else 0
    return max(spanned, seen, len(trace.step_times_ns))


def _about_most(guards: Iterable[Guard | None]) -> list[Guard]:
    """Return the guards of the most frequent kind and source, in order."""
    known = [guard for guard in guards if guard is not None]
    most = Counter(guard.key for guard in known).most_common(1)
    return [guard for guard in known if guard.key == most[0][0]]


def _sizes(guards: Iterable[Guard]) -> list[int]:
    """Return the sizes in guards on a dimension, ascending."""
    values = (value for guard in guards for value in (guard.expected, guard.actual) if guard.kind == "size")
    return sorted({int(value) for value in values if value is not None and value.isdecimal()})


def _churn_of(again: Again) -> tuple[Guard, list[int]] | None:
    """Return a guard on the dimension whose sizes cause most of a frame's recompilations, with those sizes, if many."""
    from perfscope.analyzers.torch_compile.guards import parse_guard

    sized = _about_most(
        row.guard
        for row in again.rows
        if row.guard is not None and row.guard.kind == "size" and row.guard.dimension is not None
    )
    if not sized or len(sized) < CHURN_SHARE * len(again.rows):
        return None
    every = [parse_guard(recompile.reasons[0]) for recompile in again.frame.recompiles if recompile.reasons]
    sizes = _sizes(guard for guard in every if guard.key == sized[0].key)
    return (sized[0], sizes) if len(sizes) >= MIN_SIZES else None


def _whole(trace: Trace, code_line: CodeLine | None) -> CodeLine | None:
    """Return the user's line with its whole path, if the log has it elsewhere; ``None`` if it is not the user's."""
    if code_line is None:
        return None
    if not code_line.file.startswith("/"):  # torch truncates a long path at its begin, possibly inside a folder's name
        full = {file for file in trace.fact(_files) if file.endswith(code_line.file)}
        if len(full) == 1:
            code_line = replace(code_line, file=full.pop())
    return code_line if is_users(code_line.file) else None


def _files(trace: Trace) -> frozenset[str]:
    """Return all files that the log names with their whole path."""
    log = trace.compile_log
    if log is None:
        return frozenset()
    lines = (
        *(line for compilation in log.compiles for line in (*compilation.stack, compilation.place)),
        *(line for graph_break in log.breaks for line in graph_break.stack),
        *(line for kernel in log.kernels for line in kernel.places),
        *(node.place for graph in log.graphs for node in graph.nodes),
        *(recompile.guard_place for recompile in log.recompiles),
    )
    return frozenset(line.file for line in lines if line is not None and line.file.startswith("/"))


def recompilation_findings(trace: Trace, *, churn: bool) -> Iterator[Finding]:
    """Yield a finding per frame compiled again in several steps; ``churn``: those with new sizes, else the others."""
    compile_log_of(trace)
    for again in trace.fact(compiled_again):
        churning = _churn_of(again)
        if churning is None and not churn:
            yield _of_guards(trace, again)
        elif churning is not None and churn:
            yield _of_sizes(trace, again, *churning)


def _of_guards(trace: Trace, again: Again) -> Finding:
    from perfscope.analyzers.torch_compile.guards import fix_of

    function = again.frame.function
    guards = _about_most(row.guard for row in again.rows)
    guard = guards[0] if guards else None
    if guard is None:
        why = "The log has no reason"
    else:
        values = list(dict.fromkeys(guard.expected for guard in guards if guard.expected is not None))
        shown = ", ".join(values[:MOST_VALUES_SHOWN]) + (" ..." if len(values) > MOST_VALUES_SHOWN else "")
        several = f" ({shown})" if guard.kind == "number" and len(values) > 1 else ""
        why = _capital(f"{guard.in_words()} changes{several}: guard {guard.text}")
    return _frame_finding(
        trace,
        again,
        subject=f"recompilation of {function}",
        title=fit_title(f"{function} is compiled {_times(len(again.rows))}", function),
        why=why,
        advice=fix_of(guard),
    )


def _times(count: int) -> str:
    return "once more" if count == 1 else f"{count:,} more times"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of_sizes(trace: Trace, again: Again, guard: Guard, sizes: list[int]) -> Finding:
    function, tensor, dimension = again.frame.function, guard.source, guard.dimension
    more = f" and {len(sizes) - MOST_SIZES_SHOWN:,} more" if len(sizes) > MOST_SIZES_SHOWN else ""
    symbol = f"{tensor}.size()[{dimension}]"
    return _frame_finding(
        trace,
        again,
        subject=f"{function} compiled for each size of {tensor} in dimension {dimension}",
        title=fit_title(
            f"{function} is compiled for {len(sizes):,} sizes of {symbol}",
            function,
            symbol,
        ),
        why=f"The sizes: {', '.join(map(str, sizes[:MOST_SIZES_SHOWN]))}{more}",
        advice=f"Mark the dimension as dynamic: torch._dynamo.mark_dynamic({tensor}, {dimension}, min={sizes[0]}, "
        f"max={sizes[-1]}). These are the sizes seen: widen it to what can come, or use torch.compile(..., "
        "dynamic=True) in place of dynamic=False. Padding to a few sizes (the next power of two) helps, too.",
    )


def _frame_finding(trace: Trace, again: Again, *, subject: str, title: str, why: str, advice: str) -> Finding:
    """Return a finding at the line that most often required the guard, else the frame's; most expensive rows first."""
    limited, times = again.frame.limit is not None, again.times
    lines = Counter(row.place for row in again.rows if row.guard is not None and row.place is not None).most_common(1)
    rows: list[dict[str, Cell]] = [
        {
            "compile_id": row.compilation.compile_id,
            "step": row.step,
            "spent_ns": compile_spans(trace, (row.compilation,)).total(),
            "guard": None if row.guard is None else row.guard.text,
            "guard_made_at": None if row.place is None else f"{row.place.file}:{row.place.line}",
        }
        for row in again.rows
    ]
    detail = f"{why}. {times.words()}"
    if limited:
        detail += " Then the limit of compilations is reached, and new calls run eagerly."
        advice += " Raising torch._dynamo.config.recompile_limit only moves the limit."
    return Finding(
        subject=subject,
        title=title,
        detail=detail,
        severity=_severity(trace, again),
        basis="measured",
        cost_ns=times.total_ns,
        cost_ns_per_step=times.per_step_ns,
        once=times.once,
        where=where_of(lines[0][0] if lines else again.frame.user_place),
        evidence=tuple(sorted(rows, key=lambda row: -int(row["spent_ns"] or 0))[:MAX_ROWS]),
        covers_ns={"compilation": time_within(trace, "compilation", again.spans)},
        spans=spans_within(trace, again.spans),
        advice=advice,
        removes=(removed_time(again.spans),),
    )


def _severity(trace: Trace, again: Again) -> Severity:
    """Return the severity by share of the step; if steps are unknown, by share of all compile time in the log."""
    times = again.times
    if times.seen is not None:
        return times.severity(median(trace.step_times_ns) if trace.step_times_ns else 0)
    log = trace.compile_log
    return severity_of(again.spans.total(), compile_spans(trace, log.compiles).total() if log is not None else 0)


def planned_again_findings(trace: Trace, *, churn: bool) -> Iterator[Finding]:
    """Yield one finding per frame that a program itself compiles again at least ``MIN_RECOMPILATIONS`` times.

    With ``churn``, frames with new sizes of a dimension, else the other frames. ``AbstainError`` if the program itself
    compiles nothing.
    """
    from perfscope.analyzers.torch_compile.guards import parse_guard

    plans = [held.plan for held in trace.torch_plans if held.plan.compiled_by == "program"]
    if not plans:
        raise AbstainError("the program compiles nothing itself")
    for plan in plans:
        frames = defaultdict(list)
        for recompile in plan.recompiles:
            frames[recompile.compile_id.partition("/")[0]].append(recompile)
        for rows in frames.values():
            guards = _about_most(parse_guard(_OF_WHICH.sub("", row.reasons[0])) for row in rows if row.reasons)
            if len(rows) >= MIN_RECOMPILATIONS and (len(_sizes(guards)) >= MIN_SIZES) == churn:
                yield _planned_finding(rows, guards)


def _planned_finding(rows: Sequence[Recompile], guards: Sequence[Guard]) -> Finding:
    from perfscope.analyzers.torch_compile.guards import fix_of

    guard, sizes = guards[0] if guards else None, _sizes(guards)
    place, function = rows[0].place, plain_function(rows[0].function)
    if guard is None:
        why = "torch gives no reason"
    elif sizes:
        why = f"{guard.in_words()} changes ({', '.join(map(str, sizes))})"
    else:
        why = f"{guard.in_words()} changes, guard {one_line(guard.text)}"
    return Finding(
        subject=f"recompilation of {function}",
        title=fit_title(f"{function} is compiled {len(rows):,} more times in a few steps", function),
        detail=f"In the planned steps: {why}.",
        severity="medium",
        basis="structural",
        where=Where() if place is None else Where(file=place.file, line=place.line),
        evidence=tuple({"guard": one_line(guard.text), "is_about": guard.in_words()} for guard in guards[:MAX_ROWS]),
        advice=fix_of(guard),
    )


def _absent(trace: Trace) -> str:
    """Return the missing recording of the abstention; without compilations, that of the rules about XLA programs."""
    if any(name.startswith(REGION) for name in trace.strings):
        return "compile_log"
    return "compile_events" if "hlo" in trace.recorded else "hlo"
