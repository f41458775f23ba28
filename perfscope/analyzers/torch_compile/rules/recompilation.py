"""A function that was compiled already is traced and compiled again while the program trains.

Why it costs:
    `jax.jit` compiles once for every combination of shapes, dtypes, static arguments and shardings it sees,
    and for every new function object; `torch.compile` once for every set of guards. Compiling takes from
    milliseconds to minutes, on the host, and the device waits. At its limit (8 a function) torch.compile gives
    up: other calls of the function then run in eager mode (`eager_fallback`).

How it is found:
    JAX: from what a run logs of `jax.monitoring` and of `jax_explain_cache_misses`: compilations of a function
    in a step after the first, of a function that was compiled before. Time is that of tracing,
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

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.time import REGION, time_within
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
from perfscope.analyzers.torch_compile.guards import FIXES, OTHER_FIX, Guard, parse_guard
from perfscope.model.compile_log import CodeLine, Compile, CompileLog, Recompile
from perfscope.model.finding import AbstainError, Cell, Finding, Severity, Where, fit_title, severity_of
from perfscope.model.intervals import Intervals, union
from perfscope.model.jax_log import CompileEvent
from perfscope.model.trace import RECORDED, Trace
from perfscope.model.units import format_ns

NEEDS = ()

MIN_STEPS = 2
"""Steps with a recompilation of the same jitted function. A last, smaller batch compiles once more and never again."""


_TIMED = frozenset({"trace", "lower", "compile"})


examined = compile_records


def check(trace: Trace) -> Iterable[Finding]:
    """One finding for each function that is compiled again in several steps."""
    log = trace.compile_log
    if log is not None and (log.compiles or log.breaks or "compile_events" not in trace.recorded):
        yield from recompilation_findings(trace)
    if "compile_events" not in trace.recorded:
        if log is None:
            raise AbstainError(f"not recorded: {RECORDED[_absent(trace)]}", (_absent(trace),))
        return
    steps = [event.step for event in trace.compile_events if event.step is not None]
    if not steps:
        return
    by_function: dict[str, list[CompileEvent]] = defaultdict(list)
    for event in trace.compile_events:
        if event.function is not None:
            by_function[event.function.removeprefix("jit(").removesuffix(")")].append(event)
    for function, events in by_function.items():
        again = _jax_again(events)
        if len({event.step for event in again if event.kind == "compile"}) >= MIN_STEPS:
            yield _jax_finding(trace, function, again, max(steps) - min(steps) + 1)


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Frames of a planned program that are compiled again, without time; those for ever new sizes are left out."""
    return planned_again_findings(trace, churn=False)


MIN_RECOMPILATIONS = 2
"""Of a frame, in different steps where steps are known. One is how dynamo learns that a size is dynamic."""

MIN_SIZES = 3
"""Of one dimension of one tensor. With automatic dynamic shapes the second size makes the dimension dynamic, so a third
one that is compiled again shows that it stays specialised."""

CHURN_SHARE = 0.5
"""Of a frame's recompilations: where so many are for sizes of one dimension, that dimension is what to fix."""

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A frame that was compiled again and again."""

    frame: CompiledFrame
    compiles: tuple[Compile, ...]
    """Those that count, in order."""
    guards: tuple[Guard | None, ...]
    """For each, the guard that failed of the latest compilation before it; ``None``: the log does not say."""
    places: tuple[CodeLine | None, ...]
    """For each, the line that made that guard necessary, if the log says it."""
    steps: tuple[int | None, ...]
    """For each, the step it happened in."""
    spent_ns: int
    """Moments once."""
    over_steps: int | None
    """Steps it is spread over; ``None`` where nobody counted steps."""

    @property
    def per_step_ns(self) -> int | None:
        """The time as that of one step; ``None`` where no step is known."""
        return None if self.over_steps is None else self.spent_ns // self.over_steps

    def main_guard(self) -> Guard | None:
        """A guard of the most frequent kind and source; of those the first."""
        known = [guard for guard in self.guards if guard is not None]
        if not known:
            return None
        key = Counter(guard.key for guard in known).most_common(1)[0][0]
        return next(guard for guard in known if guard.key == key)

    def values_of(self, guard: Guard) -> tuple[str, ...]:
        """Values that the earlier compilations were made for, as far as guards of the same key name them."""
        same = [one for one in self.guards if one is not None and one.key == guard.key]
        return tuple(dict.fromkeys(guard.expected for guard in same if guard.expected is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """A dimension that is compiled again for each of its sizes."""

    tensor: str
    dimension: int
    sizes: tuple[int, ...]
    """Seen, ascending."""
    recompilations: int
    """Of the frame, for this dimension."""


def compiled_again(trace: Trace) -> tuple[Again, ...]:
    """Frames with at least ``MIN_RECOMPILATIONS`` that count."""
    log = trace.compile_log
    if log is None:
        return ()
    steps = (log.step_at(compilation.start_ns) for compilation in log.compiles if compilation.start_ns is not None)
    first = min((step for step in steps if step is not None), default=None)
    result = []
    for frame in trace.fact(compiled_frames):
        again = _frame_again(trace, log, frame, first)
        if again is not None:
            result.append(again)
    return tuple(result)


def churn_of(again: Again) -> Churn | None:
    """The dimension whose sizes make up most of a frame's recompilations; ``None`` if there is none with many sizes."""
    counted = Counter(
        (guard.source, guard.dimension)
        for guard in again.guards
        if guard is not None and guard.kind == "size" and guard.source is not None and guard.dimension is not None
    )
    if not counted:
        return None
    (tensor, dimension), most = counted.most_common(1)[0]
    every = [parse_guard(recompile.reasons[0]) for recompile in again.frame.recompiles if recompile.reasons]
    about = [guard for guard in every if guard.key == ("size", tensor, dimension)]
    said = (size for guard in about for size in (guard.expected, guard.actual) if size is not None)
    sizes = {int(size) for size in said if size.isdecimal()}
    if len(sizes) < MIN_SIZES or most < CHURN_SHARE * len(again.compiles):
        return None
    return Churn(tensor=tensor, dimension=dimension, sizes=tuple(sorted(sizes)), recompilations=most)


def user_line(trace: Trace, again: Again) -> CodeLine | None:
    """The user's line: the one that most often made the guard necessary, else the frame's."""
    made = Counter(
        line
        for place, guard in zip(again.places, again.guards, strict=True)
        if guard is not None and (line := _whole(trace, place)) is not None
    )
    return made.most_common(1)[0][0] if made else again.frame.user_place


def rows_of(trace: Trace, again: Again) -> tuple[Mapping[str, Cell], ...]:
    """Evidence: one row a compilation, the most expensive first."""
    rows: list[dict[str, Cell]] = []
    for compilation, guard, code_line, step in zip(
        again.compiles, again.guards, again.places, again.steps, strict=True
    ):
        line = _whole(trace, code_line)
        rows.append(
            {
                "compile_id": compilation.compile_id,
                "step": step,
                "spent_ns": compile_spans(trace, (compilation,)).total(),
                "guard": guard.text if guard is not None else None,
                "guard_made_at": f"{line.file}:{line.line}" if line is not None else None,
            }
        )
    rows.sort(key=lambda row: -int(row["spent_ns"] or 0))
    return tuple(rows[:MAX_ROWS])


def _frame_again(trace: Trace, log: CompileLog, frame: CompiledFrame, first_step: int | None) -> Again | None:
    reasons = _reasons(frame)
    chosen: list[Compile] = []
    steps: list[int | None] = []
    for compilation in frame.compiles[1:]:
        step = log.step_at(compilation.start_ns) if compilation.start_ns is not None else None
        if first_step is not None and (step is None or step <= first_step):
            continue
        if (
            compilation.traced_graphs or compilation.has_code is not False
        ):  # the one that hit the limit compiled nothing
            chosen.append(compilation)
            steps.append(step)
    different = len(chosen) if first_step is None else len(set(steps))
    if different < MIN_RECOMPILATIONS:
        return None
    said = [reasons.get(compilation.compile_id) for compilation in chosen]
    return Again(
        frame=frame,
        compiles=tuple(chosen),
        guards=tuple(
            parse_guard(recompile.reasons[0]) if recompile is not None and recompile.reasons else None
            for recompile in said
        ),
        places=tuple(recompile.guard_place if recompile is not None else None for recompile in said),
        steps=tuple(steps),
        spent_ns=compile_spans(trace, chosen).total(),
        over_steps=None if first_step is None else _over_steps(trace, log),
    )


def _over_steps(trace: Trace, log: CompileLog) -> int:
    """Steps of the run as far as they are known: those that compiled something may be few, those timed as well."""
    numbers = [span.step for span in log.steps if span.step is not None]
    spanned = max(numbers) - min(numbers) + 1 if numbers else 1
    recorded = trace.rows["steps"]["number"]
    seen = int(recorded.max()) + 1 if len(recorded) else 0
    return max(spanned, seen, len(trace.step_times_ns))


def _reasons(frame: CompiledFrame) -> dict[str, Recompile]:
    return {recompile.compile_id: recompile for recompile in frame.recompiles}


def _whole(trace: Trace, code_line: CodeLine | None) -> CodeLine | None:
    """The user's place with its whole path where the log has it elsewhere; ``None`` if it is not the user's."""
    if code_line is None:
        return None
    if not code_line.file.startswith("/"):  # torch keeps the end of a long path, perhaps from within a folder's name
        full = {file for file in trace.fact(_files) if file.endswith(code_line.file)}
        if len(full) == 1:
            code_line = CodeLine(file=full.pop(), line=code_line.line, function=code_line.function, code=code_line.code)
    return code_line if is_users(code_line.file) else None


def _files(trace: Trace) -> frozenset[str]:
    """All files that the log names with their whole path."""
    log = trace.compile_log
    return frozenset(
        code_line.file for code_line in (_places(log) if log is not None else ()) if code_line.file.startswith("/")
    )


def _places(log: CompileLog) -> Iterable[CodeLine]:
    for compilation in log.compiles:
        yield from compilation.stack
        if compilation.place is not None:
            yield compilation.place
    for graph_break in log.breaks:
        yield from graph_break.stack
    for kernel in log.kernels:
        yield from kernel.places
    for graph in log.graphs:
        yield from (node.place for node in graph.nodes if node.place is not None)
    for recompile in log.recompiles:
        if recompile.guard_place is not None:
            yield recompile.guard_place


MOST_SIZES_SHOWN = 8
MOST_VALUES_SHOWN = 3


def recompilation_findings(trace: Trace) -> Iterator[Finding]:
    """A finding for each frame compiled again in several steps, but those that churn through sizes."""
    compile_log_of(trace)
    for again in trace.fact(compiled_again):
        if churn_of(again) is None:
            yield _recompilation(trace, again)


def churn_findings(trace: Trace) -> Iterator[Finding]:
    """A finding for each frame that is compiled again for each size of a dimension."""
    compile_log_of(trace)
    for again in trace.fact(compiled_again):
        churn = churn_of(again)
        if churn is not None:
            yield _churn(trace, again, churn)


def _recompilation(trace: Trace, again: Again) -> Finding:
    guard = again.main_guard()
    function = again.frame.function
    why = "The log does not say why" if guard is None else _capital(_change(again, guard))
    return _frame_finding(
        trace,
        again,
        subject=f"recompilation of {function}",
        title=fit_title(
            f"{function} is compiled {len(again.compiles):,} more times: {format_ns(again.spent_ns)} in all", function
        ),
        detail=f"{why}.{_in_steps(again)}{_then(again)}",
        advice=_fix(guard) + _limit_advice(again),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _change(again: Again, guard: Guard) -> str:
    values = again.values_of(guard)
    if guard.kind != "number" or len(values) < 2:
        return f"{guard.in_words()} changes: guard {guard.text}"
    shown = ", ".join(values[:MOST_VALUES_SHOWN]) + (" ..." if len(values) > MOST_VALUES_SHOWN else "")
    return f"{guard.in_words()} changes ({shown}): guard {guard.text}"


def _churn(trace: Trace, again: Again, churn: Churn) -> Finding:
    low, high = churn.sizes[0], churn.sizes[-1]
    shown = ", ".join(map(str, churn.sizes[:MOST_SIZES_SHOWN]))
    more = f" and {len(churn.sizes) - MOST_SIZES_SHOWN:,} more" if len(churn.sizes) > MOST_SIZES_SHOWN else ""
    symbol = f"{churn.tensor}.size()[{churn.dimension}]"
    return _frame_finding(
        trace,
        again,
        subject=f"{again.frame.function} compiled for each size of {churn.tensor} in dimension {churn.dimension}",
        title=fit_title(
            f"{again.frame.function} is compiled for {len(churn.sizes):,} sizes of {symbol}: "
            f"{format_ns(again.spent_ns)} in all",
            again.frame.function,
            symbol,
        ),
        detail=f"The sizes: {shown}{more}.{_in_steps(again)}{_then(again)}",
        advice=f"Mark the dimension as dynamic: torch._dynamo.mark_dynamic({churn.tensor}, {churn.dimension}, "
        f"min={low}, "
        f"max={high}). These are the sizes seen: widen it to what can come, or use torch.compile(..., dynamic=True) in "
        "place of dynamic=False. Padding to a few sizes (the next power of two) helps, too." + _limit_advice(again),
    )


def _frame_finding(trace: Trace, again: Again, *, subject: str, title: str, detail: str, advice: str) -> Finding:
    per_step, spans = again.per_step_ns, compile_spans(trace, again.compiles)
    return Finding(
        subject=subject,
        title=title,
        detail=detail,
        severity=_severity(trace, again),
        basis="measured",
        cost_ns=again.spent_ns,
        cost_ns_per_step=per_step,
        where=where_of(user_line(trace, again)),
        evidence=rows_of(trace, again),
        covers_ns=_covers(trace, spans),
        spans=spans_within(trace, spans),
        advice=advice,
    )


def _covers(trace: Trace, spans: Intervals) -> dict[str, int]:
    """The part of the account of the step that compilations at ``spans`` explain."""
    return {"compilation": time_within(trace, "compilation", spans)}


def _severity(trace: Trace, again: Again) -> Severity:
    """Share of the step; where no step is known of all the time in which the log compiled something."""
    if again.per_step_ns is not None:
        step = median(trace.step_times_ns) if trace.step_times_ns else 0
        return severity_of(again.per_step_ns, max(step, again.per_step_ns))
    log = trace.compile_log
    return severity_of(again.spent_ns, compile_spans(trace, log.compiles).total() if log is not None else 0)


def _in_steps(again: Again) -> str:
    steps = {step for step in again.steps if step is not None}
    return f" It happens in {len(steps):,} steps." if again.over_steps is not None and steps else ""


def _then(again: Again) -> str:
    return "" if again.frame.limit is None else " Then the limit of compilations is reached, and new calls run eagerly."


def _limit_advice(again: Again) -> str:
    if again.frame.limit is None:
        return ""
    return " Raising torch._dynamo.config.recompile_limit only moves the limit."


def _fix(guard: Guard | None) -> str:
    if guard is None or guard.kind not in FIXES:
        return OTHER_FIX
    return FIXES[guard.kind].format(source=guard.source, dimension=guard.dimension)


_OF_WHICH = re.compile(r"^\d+/\d+: ")
"""Before a reason: the compilation whose guard failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAgain:
    """A frame that was compiled again for one and the same kind of guard."""

    function: str
    where: Where
    recompilations: int
    guards: tuple[Guard, ...]
    """Those that are about the same as the most frequent one, in order."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Where they are about a dimension: its sizes, sorted."""
        said = (value for guard in self.guards for value in (guard.expected, guard.actual) if guard.kind == "size")
        return tuple(sorted({int(value) for value in said if value is not None and value.isdecimal()}))


def planned_again(trace: Trace) -> tuple[PlannedAgain, ...]:
    """Frames that a program itself compiles, with at least ``MIN_RECOMPILATIONS`` after their first compilation.

    One is how dynamo learns that a size or number is dynamic. ``AbstainError`` where it compiles nothing itself.
    """
    plans = [held.plan for held in trace.torch_plans if held.plan.compiled_by == "program"]
    if not plans:
        raise AbstainError("the program compiles nothing itself")
    result = []
    for plan in plans:
        frames = defaultdict(list)
        for recompile in plan.recompiles:
            frames[recompile.compile_id.partition("/")[0]].append(recompile)
        for rows in frames.values():
            if len(rows) < MIN_RECOMPILATIONS:
                continue
            guards = [parse_guard(_OF_WHICH.sub("", row.reasons[0])) for row in rows if row.reasons]
            most = Counter(guard.key for guard in guards).most_common(1)
            plan_line = rows[0].place
            result.append(
                PlannedAgain(
                    function=plain_function(rows[0].function),
                    where=Where() if plan_line is None else Where(file=plan_line.file, line=plan_line.line),
                    recompilations=len(rows),
                    guards=tuple(guard for guard in guards if guard.key == most[0][0]),
                )
            )
    return tuple(result)


def planned_again_findings(trace: Trace, *, churn: bool) -> Iterator[Finding]:
    """One finding for each frame: with ``churn`` those that see ever new sizes of a dimension, else the others."""
    for again in planned_again(trace):
        if (len(again.sizes) >= MIN_SIZES) == churn:
            yield _planned_finding(again)


def _planned_finding(again: PlannedAgain) -> Finding:
    guard = again.guards[0] if again.guards else None
    if guard is None:
        why = "torch does not say why"
    elif again.sizes:
        why = f"{guard.in_words()} changes ({', '.join(map(str, again.sizes))})"
    else:
        why = f"{guard.in_words()} changes, guard {one_line(guard.text)}"
    fix = OTHER_FIX if guard is None else FIXES.get(guard.kind, OTHER_FIX)
    return Finding(
        subject=f"recompilation of {again.function}",
        title=fit_title(
            f"{again.function} is compiled {again.recompilations:,} more times in a few steps", again.function
        ),
        detail=f"In the steps that were walked through: {why}.",
        severity="medium",
        basis="structural",
        where=again.where,
        evidence=tuple(
            {"guard": one_line(guard.text), "is_about": guard.in_words()} for guard in again.guards[:MAX_ROWS]
        ),
        advice=fix if guard is None else fix.format(source=guard.source, dimension=guard.dimension),
    )


def _absent(trace: Trace) -> str:
    """What would have told; where nothing was compiled it is said in the words of other rules on XLA's programs."""
    if any(name.startswith(REGION) for name in trace.strings):
        return "compile_log"
    return "compile_events" if "hlo" in trace.recorded else "hlo"


def _jax_again(events: Sequence[CompileEvent]) -> list[CompileEvent]:
    """Events of a function after its first compilation, in steps after the program's first."""
    compiled = next((event.end_ns for event in events if event.kind == "compile"), None)
    if compiled is None:
        return []
    return [event for event in events if event.end_ns > compiled and event.step is not None and event.step > 0]


def _jax_finding(trace: Trace, function: str, again: list[CompileEvent], spanned: int) -> Finding:
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
    why = reasons.most_common(1)[0][0].splitlines()[0][:200] if reasons else ""
    return Finding(
        subject=f"recompilation of {function}",
        title=fit_title(
            f"{function} is compiled {count:,} more times: {format_ns(cost)} in "
            f"{len({event.step for event in again}):,} "
            "steps",
            function,
        ),
        detail=_capital(why),
        severity=severity_of(per_step, max(step_ns, per_step)),
        basis="measured",
        cost_ns=cost,
        cost_ns_per_step=per_step,
        where=Where(file=file, line=line),
        evidence=tuple(_jax_row(step, events) for step, events in _by_step(again)[:MAX_ROWS]),
        covers_ns=_covers(trace, _spent(again)),
        spans=spans_within(trace, _spent(again)),
        advice="Pad shapes to a few sizes, and pass numbers that change as arrays (jnp.int32(i)), not as static "
        "arguments. Make the jitted function once, outside the loop.",
    )


def _by_step(again: list[CompileEvent]) -> list[tuple[int, list[CompileEvent]]]:
    """Steps, the most expensive first."""
    steps: dict[int, list[CompileEvent]] = defaultdict(list)
    for event in again:
        if event.step is not None:
            steps[event.step].append(event)
    return sorted(steps.items(), key=lambda pair: (-_union_ns(pair[1]), pair[0]))


def _jax_row(step: int, events: list[CompileEvent]) -> dict[str, str | int | float | None]:
    return {
        "step": step,
        "compilations": sum(event.kind == "compile" for event in events),
        "spent_ns": _union_ns(events),
        "reason": next((event.reason[:300] for event in events if event.reason), None),
    }


def _union_ns(events: Sequence[CompileEvent]) -> int:
    """Time covered; a trace holds what is traced inside it, so durations must not be added up."""
    return _spent(events).total()


def _spent(events: Sequence[CompileEvent]) -> Intervals:
    timed = [event for event in events if event.kind in _TIMED and event.duration_ns]
    ends = np.array([event.end_ns for event in timed], np.int64)
    lengths = np.array([event.duration_ns for event in timed], np.int64)
    return union(ends - lengths, ends)
