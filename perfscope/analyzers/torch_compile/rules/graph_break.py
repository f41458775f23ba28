"""A line of the program ends a compiled graph.

Example:
    Before::

        @torch.compile
        def step(x):
            if x.abs().max() > limit:           # the graph ends here
                x = x * 0.5
            return model(x)

    After::

        @torch.compile(fullgraph=True)
        def step(x):
            x = x * torch.where(x.abs().max() > limit, 0.5, 1.0)
            return model(x)

Why it costs:
    torch.compile cannot put the line into a graph (a branch on a tensor's value, `.item()`, `print`, an unsupported
    library). It ends the graph, runs the line in Python and begins another graph. Compiled code is looked up and
    entered once more, nothing is fused across the line, tensors that cross it go through memory, the backward pass is
    split as well, and if the line needs a value, the host waits for the device.

How it is found:
    Every graph break in torch.compile's log counts for the user's line. There is one finding per line, however many
    frames, attempts and recompilations report it. Functions that run entirely in eager mode belong to
    `eager_fallback`, together with graphs of other functions that the same line ends. Breaks that torch makes around
    each step of `torch.optim` are left out, because no change of the program avoids them.

    Time is measured if compiled regions in the trace have compile ids (old versions of torch write none). It is the
    time inside the region of a broken frame and outside of compiled graphs: the line itself, lookups, and the entry
    into the next graph. Compilation is excluded from it and from the step. On a CPU this host time is the cost. With an
    accelerator the cost is the device's idle time from there to the next work (at most the host time, unless the host
    waited for the device, which `host_sync` reports as well) plus the time of work launched there while nothing else
    ran, so a break during a full queue costs nothing. It is an upper bound, without the lost fusion and the split
    backward pass. Costs below a thousandth of the step, and lines whose frames do not run in the recorded steps, are
    not reported. Without such a trace the finding is structural.

    In a planned PyTorch program (`perfscope compile`): the lines at which its graphs end, or would end if its model
    were compiled (severity low, because it is not). These findings are structural, without time.

Fix:
    Keep the decision on the device, print outside the compiled function or every N steps, and ask for an error
    in place of a break::

        x = x * torch.where(x.abs().amax() > limit, 0.5, 1.0)     # not: if x.abs().amax() > limit
        program = torch.compile(model, fullgraph=True)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from msgspec import Struct

from perfscope.analyzers.ops import spans_of_windows
from perfscope.analyzers.spans import Region, Window, regions
from perfscope.analyzers.time import per_step, step_windows
from perfscope.analyzers.torch_compile.cost import EagerCost, eager_cost, steady_ns
from perfscope.analyzers.torch_compile.frames import (
    CompiledFrame,
    compile_log_of,
    compile_records,
    compile_spans,
    compiled_frames,
    doc_link,
    fallback_lines,
    first_hint,
    one_line,
    plain_function,
    planned_breaks,
    user_place,
    where_of,
)
from perfscope.model.compile_log import CodeLine, CompileLog, GraphBreak
from perfscope.model.finding import Cell, Finding, fit_title
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace

LEAST_SHARE = 0.001
"""Smallest share of the step for a finding about a line (as in `host_sync`)."""


FIXES = {
    "gb0170": "Decide on the device: torch.where(condition, a, b), a mask, or torch.cond.",
    "gb0124": "Keep the value on the device, or read it outside the compiled function. "
    "torch._dynamo.config.capture_scalar_outputs = True takes .item() into the graph.",
    "gb0059": "Call the builtin (print, input ...) outside the compiled function, or log with "
    "torch._dynamo.config.reorderable_logging_functions.",
    "gb0036": "Avoid sizes that depend on data: a mask in place of an index, torch.nonzero_static, or "
    "torch._dynamo.config.capture_dynamic_output_shape_ops = True.",
}
"""Advice by torch's id of the break."""

OTHER_FIX = (
    "Move the line out of the compiled function, or write it with ops torch.compile can trace. "
    "torch.compile(..., fullgraph=True) makes a break an error."
)

MAX_ROWS = 20
"""Maximum number of evidence rows of one finding."""

SKIPPED_FUNCTION = "gb0007"
"""torch's id of a call to a function that torch.compile never traces."""

OPTIMIZER_FOLDER = "torch/optim/"

examined = compile_records


class BrokenLine(Struct, frozen=True, kw_only=True):
    """A line that ends graphs."""

    place: CodeLine | None
    breaks: tuple[GraphBreak, ...]
    frames: tuple[CompiledFrame, ...]
    """Frames whose graphs it ends."""
    windows: tuple[Window, ...] | None
    """Host time it costs; ``None`` if the trace does not separate it from compiled code."""
    seen: bool | None
    """Whether its frames run in the recorded steps; ``None`` if unknown."""


def broken_lines(trace: Trace) -> tuple[BrokenLine, ...]:
    """Return the lines that end a graph but leave the rest of their frame compiled, in the order of the log."""
    log = trace.compile_log
    if log is None:
        return ()
    eager = {compilation.compile_id for compilation in log.compiles if compilation.has_code is False}
    groups: dict[tuple[str, int] | None, list[GraphBreak]] = defaultdict(list)
    places: dict[tuple[str, int] | None, CodeLine | None] = {}
    for graph_break in log.breaks:
        if graph_break.skipped_frame or graph_break.compile_id in eager or _made_by_optimizer(trace, graph_break):
            continue
        code_line = user_place(graph_break.place, graph_break.stack)
        key = None if code_line is None else (code_line.file, code_line.line)
        groups[key].append(graph_break)
        places.setdefault(key, code_line)
    windows = _windows(trace, log, groups)
    return tuple(
        BrokenLine(
            place=places[key],
            breaks=tuple(breaks),
            frames=_frames(trace, breaks),
            windows=windows.get(key),
            seen=_seen(trace, breaks),
        )
        for key, breaks in groups.items()
    )


def _made_by_optimizer(trace: Trace, graph_break: GraphBreak) -> bool:
    """Whether torch itself ends the graph, in the wrappers around an optimizer's step."""
    place = graph_break.place
    if place is None:
        return False
    called_step = graph_break.doc_id == SKIPPED_FUNCTION and (place.file, place.line) in trace.fact(_optimizer_calls)
    return called_step or _in_optimizer(place.file)


def _optimizer_calls(trace: Trace) -> frozenset[tuple[str, int]]:
    """Return the lines (file, line) that call torch's optimizers, from the stacks of the log."""
    log = trace.compile_log
    if log is None:
        return frozenset()
    known = [*(found.stack for found in log.breaks), *(compilation.stack for compilation in log.compiles)]
    return frozenset(
        (outer.file, outer.line)
        for stack in known
        for outer, inner in pairwise(stack)
        if _in_optimizer(inner.file) and not _in_optimizer(outer.file)
    )


def _in_optimizer(file: str) -> bool:
    return OPTIMIZER_FOLDER in file.replace("\\", "/")


def _frames(trace: Trace, breaks: Iterable[GraphBreak]) -> tuple[CompiledFrame, ...]:
    frames = [frame for graph_break in breaks for frame in trace.fact(_frames_by_id).get(graph_break.compile_id, ())]
    return tuple({id(frame): frame for frame in frames}.values())


def _frames_by_id(trace: Trace) -> dict[str, list[CompiledFrame]]:
    result: dict[str, list[CompiledFrame]] = defaultdict(list)
    for frame in trace.fact(compiled_frames):
        for compile_id in frame.ids:
            result[compile_id].append(frame)
    return result


def _in_steps(trace: Trace) -> tuple[Region, ...]:
    """Return the regions in recorded steps; all regions without steps."""
    steps = trace.fact(step_windows)
    if not steps.count:
        return trace.fact(regions)
    kept = []
    for region in trace.fact(regions):
        begun = region.own[0].start_ns if region.own else None
        if begun is None or bool(((steps.starts <= begun) & (begun < steps.ends)).any()):
            kept.append(region)
    return tuple(kept)


def _seen(trace: Trace, breaks: Iterable[GraphBreak]) -> bool | None:
    """Return whether the frames ran in the recorded steps.

    Compile ids differ after a recompilation, so frames are compared.
    """
    runs = trace.fact(_in_steps)
    if not runs or any(run.compile_id is None for run in runs):
        return None
    ids = frozenset().union(*(frame.ids for frame in _frames(trace, breaks)))
    return any(run.compile_id in ids for run in runs)


def _windows(
    trace: Trace, log: CompileLog, groups: dict[tuple[str, int] | None, list[GraphBreak]]
) -> dict[tuple[str, int] | None, tuple[Window, ...]]:
    """Return, per line, the own time of the regions it breaks, and of regions inside them without an own break."""
    every = trace.fact(regions)
    if not every or any(region.compile_id is None for region in every):
        return {}
    line_of = {graph_break.compile_id: key for key, breaks in groups.items() for graph_break in breaks}
    holds_ops = {compilation.compile_id for compilation in log.compiles if compilation.graph_ops}
    result: dict[tuple[str, int] | None, list[Window]] = defaultdict(list)
    blurred: set[tuple[str, int] | None] = set()
    runs = set(map(id, trace.fact(_in_steps)))
    owners: list[tuple[str, int] | None] = []
    owned: list[bool] = []
    for region in every:  # an enclosing region comes before its inner regions
        mine = region.compile_id in line_of
        inherited = not mine and region.outer is not None and owned[region.outer]
        owner = (
            line_of[region.compile_id]
            if mine and region.compile_id
            else owners[region.outer]
            if inherited and region.outer is not None
            else None
        )
        owners.append(owner)
        owned.append(mine or inherited)
        if not owned[-1] or id(region) not in runs:
            continue
        if not region.graphs and region.compile_id in holds_ops:
            blurred.add(owner)  # the graphs of this backend leave no mark in the trace
        result[owner].extend(region.own)
    return {key: tuple(windows) for key, windows in result.items() if key not in blurred}


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per line that ends a graph in the recorded steps, or in a log without a trace.

    A line that also leaves a whole function in eager mode is a single finding of `eager_fallback`.
    """
    compile_log_of(trace)
    of_fallbacks = trace.fact(fallback_lines)
    for line in trace.fact(broken_lines):
        if line.place is not None and (line.place.file, line.place.line) in of_fallbacks:
            continue
        finding = None if line.seen is False else _finding(trace, line)
        if finding is not None:
            yield finding


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per line that ends a planned graph, or would if the program's model were compiled."""
    for held in trace.torch_plans:
        hypothetical = held.plan.compiled_by == "perfscope"
        for line in planned_breaks(held):
            first = line.breaks[0]
            skipped = all(graph_break.skipped_frame for graph_break in line.breaks)
            function = line.functions[-1]
            verb = "would end a graph" if hypothetical else "ends a graph"
            detail = f"The reason: {first.reason}."
            if skipped:
                detail += " All of the function would stay eager." if hypothetical else " All of it runs in eager mode."
            if hypothetical:
                detail += " The program is not compiled: planned as if its model were."
            yield Finding(
                subject=f"graph break in {function}",
                title=fit_title(f"{first.reason} {verb} in {function}", first.reason, function),
                detail=detail,
                severity="low" if hypothetical else "medium",
                basis="structural",
                where=where_of(line.place),
                evidence=tuple(
                    {
                        "compile_id": graph_break.compile_id,
                        "reason": graph_break.reason,
                        "explanation": one_line(graph_break.explanation),
                        "frame_stays_eager": "yes" if graph_break.skipped_frame else "no",
                        "doc": doc_link(graph_break.doc_id),
                    }
                    for graph_break in line.breaks[:MAX_ROWS]
                ),
                advice=_advice(first),
            )


def _finding(trace: Trace, line: BrokenLine) -> Finding | None:
    cost = eager_cost(trace, line.windows) if line.windows else None
    whole = trace.fact(steady_ns)
    if cost is not None and cost.cost_ns < LEAST_SHARE * whole:
        return None
    first = line.breaks[0]
    functions = [line.place.function if line.place is not None else None, *(frame.function for frame in line.frames)]
    name = plain_function(next(filter(None, functions), None))
    detail = f"The reason: {first.reason}."
    if cost is not None:
        waits = f", with {cost.syncs:,} wait{'s' if cost.syncs > 1 else ''} for a value" if cost.syncs else ""
        detail += (
            f" The cost is the time the {'device loses' if cost.on_device else 'host spends'} between graphs{waits}."
        )
    return Finding(
        subject=f"graph break in {name}",
        title=fit_title(
            f"{first.reason} ends a graph in {name}",
            first.reason,
            name,
        ),
        detail=detail,
        severity="medium" if cost is None else severity_of(cost.cost_ns, whole),
        basis="structural" if cost is None else "measured",
        cost_ns=None if cost is None else cost.cost_ns,
        cost_ns_per_step=None if cost is None else per_step(trace, cost.cost_ns),
        where=where_of(line.place),
        evidence=tuple(_row(trace, line, graph_break, cost) for graph_break in line.breaks[:MAX_ROWS]),
        spans=spans_of_windows(line.windows or ()),
        advice=_advice(first),
        removes=() if cost is None else cost.removes,
    )


def _row(trace: Trace, line: BrokenLine, graph_break: GraphBreak, cost: EagerCost | None) -> Mapping[str, Cell]:
    broken = [
        compilation
        for frame in line.frames
        for compilation in frame.compiles
        if compilation.compile_id == graph_break.compile_id
    ]
    return {
        "compile_id": graph_break.compile_id,
        "function": next((compilation.function for compilation in broken if compilation.function), None),
        "reason": graph_break.reason,
        "explanation": one_line(graph_break.explanation),
        "doc": doc_link(graph_break.doc_id),
        "compile_ns": compile_spans(trace, broken).total(),
        "line_host_ns": None if cost is None else cost.host_ns,
        "line_sync_wait_ns": None if cost is None else cost.sync_wait_ns,
    }


def _advice(graph_break: GraphBreak) -> str:
    hint = first_hint(graph_break)
    fix = FIXES.get(graph_break.doc_id or "", OTHER_FIX)
    return fix if hint is None else f"{fix} Hint from torch: {hint}"
