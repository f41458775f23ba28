"""A line of the program ends a compiled graph.

Why it costs:
    torch.compile cannot put the line into a graph (a branch on a tensor's value, `.item()`, `print`, a library
    it cannot trace). It ends the graph, runs the line in Python and begins another graph: the lookup of compiled code
    and the way into it are paid again, nothing is fused across the line, tensors that cross it go through memory,
    the backward is cut as well, and where the line needs a value the host waits for the device.

How it is found:
    Every record of torch.compile's log that a graph ends and the function goes on is counted to the user's line;
    one line is one finding, however many frames, attempts and recompilations tell of it. Functions left to eager
    mode as a whole are `eager_fallback`.

    Time is measured in a trace whose compiled regions carry their compile ids (old versions of torch write none):
    inside the region of a broken frame what lies outside of compiled graphs, that is the line itself, lookups,
    and the way into the next graph; compiling is left out of it and of the step it is a share of. On a CPU that
    host time is the cost. With an accelerator it is the time that idles from there to the next work (no more
    than the host time, unless the host waited for the device there, which `host_sync` names as well), plus the
    work launched there while nothing else ran: a break that a full queue hides costs nothing. It is an upper
    bound, of which the lost fusion and the cut backward are no part; bytes of tensors that cross the line are
    modelled from the graphs' shapes (matched by dtype and shape, at most) and are in the evidence. Less than a
    thousandth of the step is no finding, and neither is a line whose frames do not run in the recorded steps.
    Without such a trace the finding is structural.

    In a planned PyTorch program (`perfscope compile`) the lines at which its graphs end, or would end if its model were
    compiled (low, as the program is not): structural, without a time.

Fix:
    Keep the decision on the device, print outside the compiled function or every N steps, and ask for an error
    in place of a break::

        x = x * torch.where(x.abs().amax() > limit, 0.5, 1.0)     # not: if x.abs().amax() > limit
        program = torch.compile(model, fullgraph=True)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfscope.analyzers.ops.finding_spans import spans_of_windows
from perfscope.analyzers.time.steps import per_step
from perfscope.analyzers.torch_compile.breaks import BrokenLine, broken_lines
from perfscope.analyzers.torch_compile.cost import EagerCost, eager_cost, steady_ns
from perfscope.analyzers.torch_compile.frames import (
    compile_log_of,
    compile_spans,
    doc_link,
    first_hint,
    one_line,
    plain_function,
    where_of,
)
from perfscope.analyzers.torch_compile.rules.graph_break.plan import break_findings
from perfscope.model.compile_log import GraphBreak
from perfscope.model.finding import Cell, Finding, severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns, format_share

NEEDS = ("compile_log",)

LEAST_SHARE = 0.001
"""Of the step: a line with less gets no finding of its own (as in `host_sync`)."""

MAX_ROWS = 20

FIXES = {
    "gb0170": "Decide on the device: torch.where(condition, a, b), a mask, or torch.cond.",
    "gb0124": "Keep the value on the device, or read it outside the compiled function; "
    "torch._dynamo.config.capture_scalar_outputs = True takes .item() into the graph.",
    "gb0059": "Call the builtin (print, input ...) outside the compiled function, or log with "
    "torch._dynamo.config.reorderable_logging_functions.",
    "gb0036": "Avoid sizes that depend on data: a mask in place of an index, torch.nonzero_static, or "
    "torch._dynamo.config.capture_dynamic_output_shape_ops = True.",
}
"""What to write instead, by torch's id of the break."""

OTHER_FIX = (
    "Move the line out of the compiled function, or write it with ops torch.compile can trace; "
    "torch.compile(..., fullgraph=True) makes a break an error."
)


def check(trace: Trace) -> Iterable[Finding]:
    """One finding a line that ends a graph in the recorded steps, or in a log without a trace."""
    compile_log_of(trace)
    for line in trace.fact(broken_lines):
        finding = None if line.seen is False else _finding(trace, line)
        if finding is not None:
            yield finding


def check_plan(trace: Trace) -> Iterable[Finding]:
    """One finding for each line that ends a planned graph, or would if the program's model were compiled."""
    return break_findings(trace, fixes=FIXES, other=OTHER_FIX)


def _finding(trace: Trace, line: BrokenLine) -> Finding | None:
    cost = eager_cost(trace, line.windows) if line.windows else None
    whole = trace.fact(steady_ns)
    if cost is not None and cost.cost_ns < LEAST_SHARE * whole:
        return None
    first = line.breaks[0]
    function = line.place.function if line.place is not None and line.place.function else line.frames[0].function
    crossing = f"; {format_bytes(line.crossing_bytes)} cross it" if line.crossing_bytes else ""
    return Finding(
        subject=f"graph break in {plain_function(function)}",
        title=f"{first.reason} ends a graph in {plain_function(function)}{_in_words(cost, whole)}{crossing}",
        severity="medium" if cost is None else severity_of(cost.cost_ns, whole),
        basis="structural" if cost is None else "measured",
        cost_ns=None if cost is None else cost.cost_ns,
        cost_ns_per_step=None if cost is None else per_step(trace, cost.cost_ns),
        cost_bytes=line.crossing_bytes if cost is None else None,
        where=where_of(line.place),
        evidence=tuple(_row(trace, line, one, cost) for one in line.breaks[:MAX_ROWS]),
        spans=spans_of_windows(line.windows or ()),
        advice=_advice(first),
    )


def _in_words(cost: EagerCost | None, whole: int) -> str:
    if cost is None:
        return ""
    waits = f", {cost.syncs:,} wait{'s' if cost.syncs > 1 else ''} for a value in it" if cost.syncs else ""
    what = "the device loses" if cost.on_device else "the host spends"
    return f"; {what} {format_ns(cost.cost_ns)} ({format_share(cost.cost_ns, whole)}) between graphs{waits}"


def _row(trace: Trace, line: BrokenLine, found: GraphBreak, cost: EagerCost | None) -> Mapping[str, Cell]:
    broken = [one for frame in line.frames for one in frame.compiles if one.compile_id == found.compile_id]
    return {
        "compile_id": found.compile_id,
        "function": next((one.function for one in broken if one.function), None),
        "reason": found.reason,
        "explanation": one_line(found.explanation),
        "doc": doc_link(found.doc_id),
        "compile_ns": compile_spans(trace, broken).total(),
        "line_host_ns": None if cost is None else cost.host_ns,
        "line_sync_wait_ns": None if cost is None else cost.sync_wait_ns,
        "line_crossing_bytes": line.crossing_bytes,
    }


def _advice(found: GraphBreak) -> str:
    hint = first_hint(found)
    fix = FIXES.get(found.doc_id or "", OTHER_FIX)
    return fix if hint is None else f"{fix} torch says: {hint}"
